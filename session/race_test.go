//go:build race

package session

const RaceEnabled = true
