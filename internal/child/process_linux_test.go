package child

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const specEnv = "STEADYFIT_TEST_CHILD"

// TestMain turns the test binary into a child that follows its specification.
func TestMain(m *testing.M) {
	if os.Getenv(specEnv) != "" {
		os.Exit(behave())
	}
	os.Exit(m.Run())
}

func behave() int {
	var behavior string
	p, err := Connect(specEnv, &behavior)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 9
	}
	switch behavior {
	case "echo":
		for in := bufio.NewScanner(p.Requests); in.Scan(); {
			_ = p.Send(in.Text())
		}
		return 3
	case "aborts":
		fmt.Fprintln(os.Stderr, "terminate called after throwing an instance of 'std::bad_alloc'")
		_ = syscall.Kill(os.Getpid(), syscall.SIGABRT)
	}
	select {}
}

func started(t *testing.T, ctx context.Context, behavior string) *Process {
	t.Helper()
	p, err := Start(ctx, Command{Args: os.Args[:1], Variable: specEnv, Spec: behavior})
	require.NoError(t, err)
	return p
}

func TestConversation(t *testing.T) {
	p := started(t, t.Context(), "echo")
	_, err := p.Receive(time.Now().Add(time.Millisecond))
	require.ErrorIs(t, err, ErrDeadline)
	_, err = io.WriteString(p.Requests, "a\nb\n")
	require.NoError(t, err)
	line, err := p.Receive(time.Now().Add(time.Minute))
	require.NoError(t, err)
	assert.Equal(t, "\"a\"\n", string(line))
	// The child notices the end of its parent, and its last messages are received.
	require.NoError(t, p.Requests.Close())
	require.True(t, p.Wait(time.Minute))
	var rest strings.Builder
	exit := p.End(func(line []byte) { rest.Write(line) })
	assert.Equal(t, "\"b\"\n", rest.String())
	assert.Equal(t, "crashed with exit code 3", exit.Cause)
	_, err = p.Receive(time.Now().Add(time.Minute))
	assert.ErrorIs(t, err, io.EOF)
}

func TestHowAChildEnds(t *testing.T) {
	t.Run("killed here", func(t *testing.T) {
		p := started(t, t.Context(), "hangs")
		assert.False(t, p.Wait(time.Millisecond))
		require.NoError(t, p.Kill("it was late"))
		require.NoError(t, p.Kill("another reason"))
		exit := p.End(nil)
		assert.Equal(t, "it was late", exit.Cause)
		assert.NoError(t, p.Kill("its number may be another one's"))
	})
	t.Run("the context ends", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := started(t, ctx, "hangs")
		cancel()
		require.True(t, p.Wait(time.Minute))
		assert.Equal(t, "context canceled", p.End(nil).Cause)
	})
	t.Run("killed from outside", func(t *testing.T) {
		p := started(t, t.Context(), "hangs")
		require.NoError(t, p.Signal(syscall.SIGKILL))
		require.True(t, p.Wait(time.Minute))
		exit := p.End(nil)
		assert.Contains(t, exit.Cause, "killed by SIGKILL")
	})
	t.Run("aborts without memory", func(t *testing.T) {
		p := started(t, t.Context(), "aborts")
		require.True(t, p.Wait(time.Minute))
		exit := p.End(nil)
		assert.True(t, exit.OutOfMemory)
		assert.Contains(t, exit.Cause, "terminate called")
	})
}

func TestConnectByHand(t *testing.T) {
	t.Setenv("STEADYFIT_TEST_BY_HAND", "1")
	var spec int
	_, err := Connect("STEADYFIT_TEST_BY_HAND", &spec)
	assert.ErrorContains(t, err, "STEADYFIT_TEST_BY_HAND was not set by a parent process; unset it")
}
