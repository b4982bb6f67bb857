//go:build !race && !leakcheck

package fit_test

const instrumented = false
