package main

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"steadyfit/internal/lab/matrix"
	"steadyfit/internal/lab/report"
)

func newReport(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "report matrix.json [other.json]",
		Short: "Render the result of a matrix again, or compare two",
		Long: `Render the result of a matrix again: report.html, matrix.txt and claims.md beside
the file, and the answer on the terminal. With two results, print the verdicts on
which they agree and, for the others, both figures and whether they differ by more
than chance. With --thin, write a copy that takes a tenth of the space, from which
report makes the same files.`,
		Example: `  steadyfit report out/matrix/matrix.json
  steadyfit report before.json after.json.gz
  steadyfit report --thin small.json.gz out/matrix/matrix.json`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			out := cmd.OutOrStdout()
			var results []*matrix.Result
			for _, path := range args {
				r, err := matrix.ReadFile(path)
				if err != nil {
					return usagef("%w", err)
				}
				results = append(results, r)
			}
			if s.thin != "" {
				if len(results) == 2 || s.json {
					return usagef("--thin takes one result; leave out --json and the other file")
				}
				thin, err := report.Thin(results[0])
				if err != nil {
					return err
				}
				return matrix.WriteFile(s.thin, thin)
			}
			if len(results) == 2 {
				return s.compare(out, results[0], results[1])
			}
			if s.json {
				return printJSON(out, results[0])
			}
			if err := report.Text(out, results[0], columns(out)); err != nil {
				return err
			}
			dir := filepath.Dir(args[0])
			if err := report.Files(dir, results[0]); err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "report: %s\n", filepath.Join(dir, "report.html"))
			return nil
		},
	}
}

func (s *settings) compare(out io.Writer, a, b *matrix.Result) error {
	if !s.json {
		_, err := report.Compare(out, a, b, columns(out))
		return err
	}
	agreement, err := report.Compare(io.Discard, a, b, 0)
	if err != nil {
		return err
	}
	return printJSON(out, agreement)
}
