package main

import (
	"errors"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"steadyfit/internal/launch"
)

func newLaunch(s *settings) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "launch [flags] -- fit [flags of fit]",
		Short: "Train in several processes on this machine",
		Long: `Start several processes of fit on this machine, as the ranks of one training. Each
trains on its part of every batch. Rank 0 writes the results; the lines that the
others log begin with their rank.

When a rank fails, launch stops the others and exits with its code, unless the
--min-workers of fit are left. With fit --supervise, each rank restarts by itself.
Ctrl-C is passed to all ranks.`,
		Example: `  steadyfit launch --workers 4 -- fit --model my/model --data train.npz --batch 128 --checkpoints ckpt --supervise --out my/trained`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || args[0] != "fit" {
				return errors.New("launch needs fit and its flags, as in launch --workers 2 -- fit --epochs 3")
			}
			return nil
		},
		RunE: s.launch,
	}
	cmd.Flags().SetInterspersed(false)
	return cmd
}

// launchGrace is the time for a step and a checkpoint after Ctrl-C. A second Ctrl-C ends launch and the
// ranks at once.
const launchGrace = 10 * time.Minute

func (s *settings) launch(cmd *cobra.Command, args []string) error {
	fit, _, err := newRoot(cmd.OutOrStdout(), cmd.ErrOrStderr()).Find(args)
	if err != nil {
		return err
	}
	if err := checkRank(fit, args[1:]); errors.Is(err, pflag.ErrHelp) {
		return fit.Help()
	} else if err != nil {
		return err
	}
	least, err := strconv.Atoi(fit.Flags().Lookup("min-workers").Value.String())
	if err != nil {
		return err
	}
	batch, err := strconv.Atoi(fit.Flags().Lookup("batch").Value.String())
	switch {
	case err != nil:
		return err
	case least > s.ranks:
		return usagef("--min-workers %d: launch starts %d ranks; expected at most that many", least, s.ranks)
	case batch < s.ranks:
		return usagef("--batch %d: launch starts %d ranks, which share each batch; expected at least that many", batch, s.ranks)
	}
	program := []string{os.Args[0]}
	for _, name := range []string{"tensorflow", "verbose"} {
		if f := cmd.Flags().Lookup(name); f.Changed {
			program = append(program, "--"+name+"="+f.Value.String())
		}
	}
	err = launch.Run(cmd.Context(), launch.Options{
		Args: append(program, args...), Ranks: s.ranks, MinRanks: least, Stderr: cmd.ErrOrStderr(), Grace: launchGrace, Log: newLog(cmd.ErrOrStderr()),
	})
	var failed *launch.Error
	if errors.As(err, &failed) {
		return &coded{failed.Code, err}
	}
	return err
}

// checkRank returns an error about flags of fit that would fail in every rank, or make all of them
// the same rank.
func checkRank(fit *cobra.Command, args []string) error {
	if err := fit.ParseFlags(args); err != nil {
		return fit.FlagErrorFunc()(fit, err)
	}
	if err := settle(fit.Flags(), fit.Flag("config").Value.String()); err != nil {
		return err
	}
	for _, name := range []string{"workers-file", "rank"} {
		if fit.Flags().Changed(name) {
			return usagef("--%s: launch gives each rank its address; leave it out", name)
		}
	}
	return nil
}
