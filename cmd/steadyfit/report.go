package main

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"steadyfit/internal/lab/report"
	"steadyfit/matrix"
)

func newReport() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "report matrix.json [other.json]",
		Short: "Render the result of a matrix again, or compare two",
		Long: `Render the result of a matrix again: report.html, matrix.txt and claims.md beside
the file, and the answer on the terminal. With two results, say on which verdicts
they agree, and where they do not, both figures and whether that is more than chance.`,
		Example: `  steadyfit report out/matrix/matrix.json
  steadyfit report before.json after.json.gz`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := matrix.ReadFile(args[0])
			if err != nil {
				return usagef("%w", err)
			}
			out := cmd.OutOrStdout()
			if len(args) == 2 {
				b, err := matrix.ReadFile(args[1])
				if err != nil {
					return usagef("%w", err)
				}
				if asJSON {
					agreement, err := report.Compare(io.Discard, a, b, report.TextOptions{})
					if err != nil {
						return err
					}
					return printJSON(out, agreement)
				}
				_, err = report.Compare(out, a, b, textOptions(out))
				return err
			}
			if asJSON {
				return printJSON(out, a)
			}
			if err := report.Text(out, a, textOptions(out)); err != nil {
				return err
			}
			dir := filepath.Dir(args[0])
			if err := renderReports(dir, a); err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "report: %s\n", filepath.Join(dir, "report.html"))
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}
