//go:build leakcheck

package tfbind_test

const leakcheck = true
