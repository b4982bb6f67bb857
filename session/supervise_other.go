//go:build !linux

package session

import (
	"errors"
	"os"
	"syscall"
)

const self = ""

func endSignals() []os.Signal          { return []os.Signal{os.Interrupt, syscall.SIGTERM} }
func passedSignals() []os.Signal       { return endSignals() }
func suspend(os.Signal, *attempt) bool { return false }
func survivePipes() (stop func())      { return func() {} }

// supervisable: nothing of this has been tried elsewhere than on Linux.
func supervisable() error { return errors.New("supervision needs Linux") }

func (c *Supervised) attach() (*os.File, error) { return nil, supervisable() }
func (c *Supervised) send([]byte) bool          { return false }
