package data

import "testing"

// The order of 10 million rows, as for a shuffled pass (go test ./data -run xxx -bench Order).
func BenchmarkOrder(b *testing.B) {
	order := make([]uint32, 10_000_000)
	for b.Loop() {
		shuffleOrder(order, 1, 2)
	}
}
