//go:build !race

package fit_test

const instrumented = false
