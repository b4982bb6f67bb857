// Package uplot has uPlot, which draws the charts of pages that load nothing, and what these pages share.
package uplot

import (
	_ "embed"
	"strings"
)

// uPlot 1.6.32 (MIT, uplot.LICENSE) is from https://registry.npmjs.org/uplot/-/uplot-1.6.32.tgz:
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

// Style returns the style sheet of a page with charts.
func Style() string { return libraryStyle + pageStyle }

// Script returns uPlot and the functions for charts. It does not name uPlot's address, since a page must
// not refer to the network.
func Script() string {
	_, chart, _ := strings.Cut(library, "*/")
	return "/* uPlot 1.6.32, MIT License, (c) 2022 Leon Sorokin */" + chart + "\n" + charts
}
