package memory

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"steadyfit/internal/memlayer"
)

func TestRead(t *testing.T) {
	u, err := Read()
	require.NoError(t, err)
	require.True(t, u.RSS.OK)
	require.Greater(t, u.RSS.Bytes, 100*KiB)
	if u.Peak.OK {
		require.GreaterOrEqual(t, u.Peak.Bytes, u.RSS.Bytes)
	}
	if u.Anon.OK {
		require.LessOrEqual(t, u.Anon.Bytes, u.RSS.Bytes)
	}
}

// Reading succeeds after an earlier reading failed.
func TestReadAfterAFailure(t *testing.T) {
	opened := own.Swap(nil)
	defer func() {
		if p := own.Swap(opened); p != nil {
			require.NoError(t, p.close())
		}
	}()
	var limit syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Max: limit.Max}))
	_, err := Read()
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
	require.ErrorIs(t, err, ErrUnavailable)
	u, err := Read()
	require.NoError(t, err)
	require.True(t, u.RSS.OK)
}

func TestReadSeesMemoryComeIn(t *testing.T) {
	before, err := Read()
	require.NoError(t, err)
	if !before.Anon.OK {
		t.Skip("this kernel does not tell anonymous memory apart (RssAnon in /proc/self/status)")
	}
	block := take(t, 64*MiB) // outside the Go heap, which may have free pages
	after, err := Read()
	require.NoError(t, err)
	require.Greater(t, after.Anon.Bytes-before.Anon.Bytes, 32*MiB)
	require.NoError(t, syscall.Munmap(block))
}

func TestReadHardlyAllocates(t *testing.T) {
	allocs := testing.AllocsPerRun(20, func() {
		if _, err := Read(); err != nil {
			t.Error(err)
		}
	})
	require.LessOrEqual(t, allocs, 2.0, "the path, as the system call wants it, and room for instrumentation")
}

func TestParseStatus(t *testing.T) {
	s, err := parseStatus([]byte("Name:\tx\nState:\tR (running)\nVmHWM:\t    1700 kB\nVmRSS:\t    1696 kB\nRssAnon:\t  " +
		"   112 kB\nRssFile:\t    1584 kB\nRssShmem:\t       8 kB\nVmSwap:\t       0 kB\nThreads:\t7\n"))
	require.NoError(t, err)
	require.Equal(t, status{
		Usage:  Usage{RSS: Known(1696 * KiB), Anon: Known(112 * KiB), File: Known(1584 * KiB), Peak: Known(1700 * KiB)},
		shared: Known(8 * KiB), swap: Known(0), threads: Known(7),
	}, s)

	s, err = parseStatus([]byte("Name:\tx\nVmRSS:\t 12 kB\nRssAnon:\t what\nVmHWM: kB"))
	require.NoError(t, err)
	require.Equal(t, status{Usage: Usage{RSS: Known(12 * KiB)}}, s, "what cannot be read is absent")

	_, err = parseStatus([]byte("Name:\tx\n"))
	require.ErrorIs(t, err, ErrUnavailable)
	_, err = parseStatus([]byte("Name:\tx\nState:\tZ (zombie)\nThreads:\t1\n"))
	require.ErrorIs(t, err, os.ErrProcessDone)
}

func TestReadPID(t *testing.T) {
	own, err := readPID(os.Getpid())
	require.NoError(t, err)
	require.True(t, own.RSS.OK)

	child := sleeper(t)
	u, err := readPID(child.Process.Pid)
	require.NoError(t, err)
	require.True(t, u.RSS.OK)

	_, err = readPID(-1)
	require.ErrorIs(t, err, os.ErrProcessDone)
}

// sleeper starts a process that waits for the end of its input.
func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	child := exec.Command("cat")
	input, err := child.StdinPipe()
	require.NoError(t, err)
	output, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	t.Cleanup(func() {
		input.Close()
		_ = child.Wait() // fails if the test has already waited
	})
	// cat answers once it runs.
	_, err = input.Write([]byte("x"))
	require.NoError(t, err)
	_, err = output.Read(make([]byte, 1))
	require.NoError(t, err)
	return child
}

func TestSamplerOfAnotherProcess(t *testing.T) {
	child := sleeper(t)
	s, err := NewSampler(child.Process.Pid)
	require.NoError(t, err)
	defer s.Close()
	var sample Sample
	require.NoError(t, s.Sample(1, &sample))
	require.True(t, sample.Get(RSS).OK)
	require.Equal(t, Known(1), sample.Get(memlayer.Threads))
	require.False(t, sample.Get(memlayer.GoHeap).OK, "the Go runtime of another process is not seen")
	require.Contains(t, sample.Values, Value{Layer: memlayer.GoHeap}, "an absent layer is there and unknown")

	// The process has ended but was not waited for, so its files can still be read.
	require.NoError(t, child.Process.Kill())
	require.Eventually(t, func() bool { return s.Sample(2, &sample) != nil }, time.Minute, time.Millisecond)
	require.ErrorIs(t, s.Sample(2, &sample), os.ErrProcessDone)
	require.False(t, sample.Get(RSS).OK)
	_ = child.Wait() // reports the kill
	require.ErrorIs(t, s.Sample(3, &sample), os.ErrProcessDone)
	_, err = NewSampler(child.Process.Pid)
	require.ErrorIs(t, err, os.ErrProcessDone)
}

func TestResetPeak(t *testing.T) {
	s, err := NewSampler(0)
	require.NoError(t, err)
	defer s.Close()
	block, err := syscall.Mmap(-1, 0, int(64*MiB), syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	for i := 0; i < len(block); i += page {
		block[i] = 1
	}
	require.NoError(t, syscall.Munmap(block))
	var before, after Sample
	require.NoError(t, s.Sample(0, &before))
	if err := s.ResetPeak(); err != nil {
		require.ErrorIs(t, err, ErrUnavailable)
		t.Skip("this kernel does not reset the peak:", err)
	}
	require.NoError(t, s.Sample(1, &after))
	if after.Get(memlayer.Peak).Bytes >= before.Get(memlayer.Peak).Bytes {
		t.Skip("this kernel accepts the reset and ignores it")
	}
	require.Less(t, after.Get(memlayer.Peak).Bytes, before.Get(memlayer.Peak).Bytes-32*MiB)
}

func readPID(pid int) (Usage, error) {
	var p process
	if err := p.open(pid); err != nil {
		return Usage{}, err
	}
	defer p.close()
	s, err := p.usage(make([]byte, statusSize))
	return s.Usage, err
}

// Peak includes the time before ResetPeak.
func TestReadKnowsThePeakBeforeAReset(t *testing.T) {
	s, err := NewSampler(0)
	require.NoError(t, err)
	defer s.Close()
	before := take(t, 64*MiB)
	highest, err := Read()
	require.NoError(t, err)
	require.NoError(t, syscall.Munmap(before))
	if err := s.ResetPeak(); err != nil {
		t.Skip("this kernel does not reset the peak:", err)
	}
	after, err := Read()
	require.NoError(t, err)
	require.GreaterOrEqual(t, after.Peak.Bytes, highest.Peak.Bytes-4*MiB)
	require.Less(t, after.RSS.Bytes, highest.Peak.Bytes-32*MiB)
}
