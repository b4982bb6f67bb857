package report

import (
	"bytes"
	"fmt"
	"io"
	"path/filepath"

	"steadyfit/internal/files"
	"steadyfit/internal/lab/matrix"
)

// Files writes the reports of a result to a folder: report.html, matrix.txt and claims.md.
func Files(dir string, r *matrix.Result) error {
	for name, render := range map[string]func(io.Writer, *matrix.Result) error{
		"report.html": HTML, "matrix.txt": Benchmark, "claims.md": Claims,
	} {
		var text bytes.Buffer
		if err := render(&text, r); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := files.Replace(filepath.Join(dir, name), text.Bytes()); err != nil {
			return err
		}
	}
	return nil
}
