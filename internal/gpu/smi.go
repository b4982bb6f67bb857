package gpu

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"steadyfit/memory"
)

// smiReport is what is read of `nvidia-smi -q -x`, its only output that has the
// instances of divided GPUs. What is not known is "N/A" there, or a reason in
// brackets; amounts are rounded to MiB.
type smiReport struct {
	Driver string   `xml:"driver_version"`
	GPUs   []smiGPU `xml:"gpu"`
}

type smiGPU struct {
	Name      string        `xml:"product_name"`
	UUID      string        `xml:"uuid"`
	Memory    smiMemory     `xml:"fb_memory_usage"`
	MIG       string        `xml:"mig_mode>current_mig"`
	Instances []smiInstance `xml:"mig_devices>mig_device"`
	Processes *smiProcesses `xml:"processes"`
}

// smiProcesses is a list, or a word for why there is none.
type smiProcesses struct {
	Text string       `xml:",chardata"`
	List []smiProcess `xml:"process_info"`
}

// list is false if there is none: then it is not known which processes there are.
func (p *smiProcesses) list() ([]smiProcess, bool) {
	if p == nil {
		return nil, false
	}
	text := strings.TrimSpace(p.Text)
	return p.List, text == "" || text == "None"
}

type smiMemory struct {
	Total string `xml:"total"`
	Used  string `xml:"used"`
}

// smiPlace is the instance that something is of; "N/A" of a GPU that is not divided.
type smiPlace struct {
	GPUInstance     string `xml:"gpu_instance_id"`
	ComputeInstance string `xml:"compute_instance_id"`
}

type smiInstance struct {
	smiPlace
	Index  string    `xml:"index"`
	UUID   string    `xml:"uuid"` // only newer drivers
	Memory smiMemory `xml:"fb_memory_usage"`
}

type smiProcess struct {
	smiPlace
	PID    string `xml:"pid"`
	Type   string `xml:"type"`
	Memory string `xml:"used_memory"`
}

// smiUnit is a device that programs can use, with all that was said of it; listed is
// whether that includes its processes, so that one that is not among them has nothing.
type smiUnit struct {
	gpu       GPU
	memory    smiMemory
	processes []smiProcess
	listed    bool
}

// units are the GPUs, or their instances where they are divided.
func (r *smiReport) units() []smiUnit {
	var all []smiUnit
	for i, g := range r.GPUs {
		divided := g.MIG == "Enabled"
		processes, listed := g.Processes.list()
		if !divided || len(g.Instances) == 0 {
			// Of a divided GPU whose memory is not told, the list is not, either: who lacks
			// the permission gets an empty one.
			all = append(all, smiUnit{
				GPU{ID: fmt.Sprint(i), UUID: g.UUID, Name: g.Name, Memory: smiAmount(g.Memory.Total), MIG: divided}, g.Memory, processes,
				listed && (!divided || smiAmount(g.Memory.Used).OK),
			})
			continue
		}
		for _, instance := range g.Instances {
			u := smiUnit{
				GPU{ID: fmt.Sprintf("%d:%s", i, instance.Index), UUID: instance.UUID, Name: g.Name + " MIG", Memory: smiAmount(instance.Memory.Total), MIG: true}, instance.Memory, nil,
				listed && smiAmount(instance.Memory.Used).OK,
			}
			for _, p := range processes {
				if p.smiPlace == instance.smiPlace {
					u.processes = append(u.processes, p)
				}
			}
			all = append(all, u)
		}
	}
	return all
}

// smiAmount is unknown for what is not an amount.
func smiAmount(text string) memory.Reading {
	b, err := memory.ParseBytes(text)
	if err != nil {
		return memory.Reading{}
	}
	return memory.Known(b)
}

func parseSMI(text []byte) (*smiReport, error) {
	r := &smiReport{}
	if err := xml.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("nvidia-smi -q -x: %w", err)
	}
	return r, nil
}

// smi asks the program nvidia-smi, anew for each sample.
type smi struct {
	program string
	ids     []string // of the driver's GPUs
}

// patience is for a driver that wakes up its GPUs one by one.
const patience = 30 * time.Second

// What nvidia-smi exits with where there is no driver (RETURN VALUE in its manual).
const (
	smiNoDriver  = 9
	smiNoLibrary = 12
)

func (s *smi) run() (*smiReport, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.program, "-q", "-x")
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("nvidia-smi does not answer within %v: %w", patience, ctx.Err())
	case err != nil:
		said := out
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && len(exit.Stderr) > 0 {
			said = exit.Stderr
		}
		first, _, _ := bytes.Cut(bytes.TrimSpace(said), []byte("\n"))
		return nil, fmt.Errorf("nvidia-smi does not answer: %w: %.200s", err, first)
	}
	return parseSMI(out)
}

// openSMI is for where NVML cannot be loaded, and why says so already.
func (d *Driver) openSMI() error {
	program, err := exec.LookPath("nvidia-smi")
	if err != nil {
		d.why += "; nor is there an nvidia-smi"
		return nil
	}
	s := &smi{program: program}
	report, err := s.run()
	if err != nil {
		d.why += "; " + err.Error()
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && (exit.ExitCode() == smiNoDriver || exit.ExitCode() == smiNoLibrary) {
			return nil
		}
		return err
	}
	d.version = report.Driver
	for _, u := range report.units() {
		d.gpus = append(d.gpus, u.gpu)
		s.ids = append(s.ids, u.gpu.ID)
	}
	if len(d.gpus) == 0 {
		d.why = "the driver has no GPU that this process may use"
		return nil
	}
	d.why, d.backend = "", s
	return nil
}

func (s *smi) asker() asker { return s }

func (*smi) close() error { return nil }

// ask leaves GPUs out that are not there any more, and all if the program fails.
func (s *smi) ask(pid uint32, into []answer) {
	report, err := s.run()
	if err != nil {
		return
	}
	own := strconv.Itoa(int(pid))
	units := map[string]smiUnit{}
	for _, u := range report.units() {
		units[u.gpu.ID] = u
	}
	for i, id := range s.ids {
		u, ok := units[id]
		if !ok {
			continue
		}
		a := &into[i]
		a.used, a.answered = smiAmount(u.memory.Used), u.listed
		for _, p := range u.processes {
			// The others only draw (type G).
			if p.PID == own && strings.Contains(p.Type, "C") {
				a.add(smiAmount(p.Memory))
			}
		}
	}
}
