package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"steadyfit/internal/version"
)

func newRoot(s *settings, stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use: rootName, Version: version.String(),
		Short: "Fine-tune TensorFlow SavedModels with memory that stays flat",
		Long: `steadyfit fine-tunes TensorFlow SavedModels with memory that stays flat.

Any flag, such as --learning-rate, can also be set by an environment variable
(STEADYFIT_LEARNING_RATE) or by a key in the YAML file of --config (learning-rate).
A flag overrides the variable, and the variable overrides the file.

Exit codes: 0 ok, 1 the run failed, 2 usage or configuration, 3 environment,
4 diverged, 5 out of memory, 6 a check failed, 130 interrupted. watch exits with the
code of the program.`,
		Example: `  steadyfit fit --model builtin:digits --data builtin:digits --epochs 20 --out out/digits
  steadyfit inspect out/digits
  steadyfit doctor`,
		SilenceErrors: true, SilenceUsage: true,
		SuggestionsMinimumDistance: 2,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			s.given = cmd.Flags().Changed
			if !s.configuring {
				warnUnknown(stderr)
			}
			return settle(cmd.Flags(), s.configFile)
		},
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(parseError)
	root.AddCommand(newFit(s), newLaunch(s), newEvaluate(s), newPredict(s), newMerge(s), newInspect(s), newVerify(),
		newDoctor(s), newBench(s), newExplain(s),
		newTune(s), newWatch(s), newMatrix(s), newReport(s), newProgram(s))
	s.register(root)
	for _, c := range root.Commands() {
		s.register(c)
		if args := c.Args; args != nil {
			c.Args = func(cmd *cobra.Command, a []string) error { return argumentError(cmd, args(cmd, a)) }
		}
	}
	cobra.AddTemplateFunc("sections", func(cmd *cobra.Command) string { return sections(cmd, s.table()) })
	root.SetUsageTemplate(usageTemplate(root.UsageTemplate()))
	return root
}

// parseError returns the usage error for flags that cobra cannot parse.
func parseError(cmd *cobra.Command, err error) error {
	switch {
	case errors.As(err, new(*pflag.InvalidValueError)):
		return usagef("%w", flagError(err))
	case !cmd.HasParent() && cmd.Flags().NArg() > 0:
		return unknownCommand(cmd, cmd.Flags().Arg(0))
	}
	return argumentError(cmd, err)
}

func argumentError(cmd *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	return usagef("%w; see %s --help", err, cmd.CommandPath())
}

func unknownCommand(root *cobra.Command, name string) error {
	meant := ""
	if like := root.SuggestionsFor(name); len(like) > 0 {
		meant = "; did you mean " + like[0] + "?"
	}
	return usagef("unknown command %q%s; see %s --help", name, meant, root.CommandPath())
}

func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("%s takes no arguments, found %q", cmd.Name(), args[0])
}

func usageTemplate(template string) string {
	before, rest, _ := strings.Cut(template, "{{if .HasAvailableLocalFlags}}")
	_, after, _ := strings.Cut(rest, "{{if .HasHelpSubCommands}}")
	return before + "{{sections .}}{{if .HasHelpSubCommands}}" + after
}

func sections(cmd *cobra.Command, table []section) string {
	var text strings.Builder
	for _, section := range table {
		flags := pflag.NewFlagSet(section.title, pflag.ContinueOnError)
		flags.SortFlags = false
		add := func(name string, of bool) {
			if f := cmd.Flag(name); of && f != nil {
				flags.AddFlag(f)
			}
		}
		add("help", section.title == "Global")
		add("version", section.title == "Global")
		for _, row := range section.flags {
			add(row.name, row.of(cmd.Name()) || row.of(rootName))
		}
		if flags.HasAvailableFlags() {
			fmt.Fprintf(&text, "\n\n%s:\n%s", section.title, strings.TrimRight(flags.FlagUsages(), "\n"))
		}
	}
	return text.String()
}
