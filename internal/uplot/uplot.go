// Package uplot has uPlot, which draws the charts of HTML pages that load nothing from the network, and
// the style and functions that these pages share.
package uplot

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"strings"
)

// uPlot 1.6.32 (MIT, uplot.LICENSE) is from the package uplot of npm:
//
//	dist/uPlot.iife.min.js  sha256 19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f
//	dist/uPlot.min.css      sha256 df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04
var (
	//go:embed uplot.js
	library string
	//go:embed uplot.css
	libraryStyle string
	// The functions and the style of all pages.
	//
	//go:embed charts.js
	charts string
	//go:embed charts.css
	pageStyle string
)

// Template parses page.tmpl. Besides funcs, the template has the functions style and script: the style
// and the code of all pages, followed by page.css or page.js. script leaves out the header of uPlot,
// since a page must not have a web address.
func Template(files fs.FS, funcs template.FuncMap) *template.Template {
	read := func(name string) string {
		text, _ := fs.ReadFile(files, name) // embedded files are always there
		return string(text)
	}
	return template.Must(template.New("page.tmpl").Funcs(funcs).Funcs(template.FuncMap{
		"style": func() template.CSS { return template.CSS(libraryStyle + pageStyle + read("page.css")) },
		"script": func() template.JS {
			_, chart, _ := strings.Cut(library, "*/")
			return template.JS("/* uPlot 1.6.32, MIT License, (c) 2022 Leon Sorokin */" + chart + "\n" + charts +
				read("page.js"))
		},
	}).ParseFS(files, "page.tmpl"))
}

// Write writes a page, or nothing if the template fails.
func Write(w io.Writer, t *template.Template, page any) error {
	var out bytes.Buffer
	if err := t.Execute(&out, page); err != nil {
		return fmt.Errorf("page: %w", err)
	}
	_, err := out.WriteTo(w)
	return err
}
