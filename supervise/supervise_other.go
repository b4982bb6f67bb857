//go:build !linux

package supervise

import "os"

var stopSignals []os.Signal

func suspend(os.Signal, *attempt) bool { return false }
func survivePipes()                    {}
func ignoreTerminalStop()              {}
func stopped(*os.File) bool            { return false }
func write(int, []byte) error          { return os.ErrInvalid }
