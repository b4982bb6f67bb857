package report

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"io"
	"path/filepath"

	"steadyfit/internal/files"
	"steadyfit/internal/lab/matrix"
	"steadyfit/internal/uplot"
	"steadyfit/memory"
)

//go:embed page.tmpl page.css page.js
var assets embed.FS

var pageTemplate = uplot.Template(assets, template.FuncMap{"sentence": sentence, "join": join, "rate": rate,
	"exactly": func(slope float64) string { return rate(memory.Interval{Estimate: slope}, false) },
	"class": func(verdict string) string {
		return map[string]string{"holds": "works", "holds in part": "partly", "does not hold": "harm",
			"undecided": "unclear"}[verdict]
	},
})

// HTML writes the report as one file that loads nothing.
func HTML(w io.Writer, r *matrix.Result) error { return uplot.Write(w, pageTemplate, newView(r)) }

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
