package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/memlayer"
	"steadyfit/train"
)

// These programs run or print command lines. All other packages are libraries.
var commands = []string{"cmd", "examples", "internal/doctor", "internal/lab/program",
	"internal/lab/programs"}

// stringsOf calls do with each string literal in the libraries of the module.
func stringsOf(t *testing.T, do func(at, text string)) {
	const root = "../.."
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		within, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() && (slices.Contains(commands, within) || within != "." && strings.HasPrefix(d.Name(), ".")) {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				text, err := strconv.Unquote(l.Value)
				require.NoError(t, err)
				do(files.Position(l.Pos()).String(), text)
			}
			return true
		})
		return nil
	}))
}

// Library texts name no flag of the command, since other programs have other flags. A whole
// command line and the flags of steadyfit-export are allowed.
//
//lane:run check
func TestLibrariesNameNoFlags(t *testing.T) {
	known := flagNames()
	flag := regexp.MustCompile(`(?:^|[^a-z-])--([a-z][a-z-]*[a-z])`)
	found := 0
	stringsOf(t, func(at, text string) {
		for _, m := range flag.FindAllStringSubmatch(text, -1) {
			found++
			assert.False(t, known[m[1]] && !strings.HasPrefix(text, "steadyfit "),
				"%s: %q names the flag --%s; name the option in braces, as in {Loop.Batch} (package option)", at, text, m[1])
		}
	})
	assert.Positive(t, found, "flags of TensorFlow are in the strings of gpuopts")
}

// Options that the command does not set, so that its users never see errors about them.
var withoutFlag = []string{"Options.Executor", "Options.Grappler", "Options.GrapplerOff",
	"Options.MemoryOptimization", "Options.OneDNNSystemAllocator", "Options.PerSessionThreads", "Options.UnifiedMemory",
	"Options.OneDNNMath", "Cluster.Workers", "Cluster.Rank", "Cluster.Timeout", "Options.Cluster", "Config.Cluster",
	"Loop.Recover", "Options.Only", "Options.Parallel"}

// Errors of the libraries name options, and the command replaces them by flags.
func TestOptionsHaveFlags(t *testing.T) {
	known := flagNames()
	option := regexp.MustCompile(`^((?:Options|Loop|Cluster|Reset|Budget|CSVOptions|ImageOptions)\.[A-Z][A-Za-z]+)(?: .+)?$|\{([A-Za-z]+\.[A-Z][A-Za-z]+)(?: [^{}]*)?\}`)
	found := map[string]bool{}
	stringsOf(t, func(at, text string) {
		for _, m := range option.FindAllStringSubmatch(text, -1) {
			name := m[1] + m[2]
			if found[name] = true; slices.Contains(withoutFlag, name) {
				continue
			}
			flag, ok := strings.CutPrefix(flagName(name, ""), "--")
			flag = regexp.MustCompile("[ =].*").ReplaceAllString(flag, "") // as in --resume=anyway
			assert.True(t, ok && known[flag], "%s: %q names the option %s, which has no flag in the table", at, text, name)
		}
	})
	assert.Greater(t, len(found), 20)
}

// Each flag has one short line of help. A command has a flag once, in a section of the help.
//
//lane:run check
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for _, section := range newSettings().table() {
		for _, row := range section.flags {
			assert.NotEmpty(t, row.help, row.name)
			assert.LessOrEqual(t, len(row.help), 90, "--%s: %s", row.name, row.help)
			assert.NotContains(t, row.help, "\n", row.name)
			for _, command := range strings.Fields(row.commands) {
				assert.Regexp(t, `^[a-z]+(-[a-z]+)*$`, row.name)
				assert.False(t, seen[command+" "+row.name], "%s has --%s twice", command, row.name)
				seen[command+" "+row.name] = true
			}
		}
	}
	commands := map[string]bool{rootName: true}
	root := newRoot(newSettings(), io.Discard, io.Discard)
	for _, c := range root.Commands() {
		commands[c.Name()] = true
		c.Flags().VisitAll(func(f *pflag.Flag) {
			assert.True(t, seen[c.Name()+" "+f.Name], "%s --%s is in no row", c.Name(), f.Name)
		})
	}
	for key := range seen {
		command, name, _ := strings.Cut(key, " ")
		assert.True(t, commands[command], "--%s: there is no command %s", name, command)
	}
}

func TestFlagName(t *testing.T) {
	for _, c := range []struct{ option, value, want string }{
		{"Loop.Batch", "3", "--batch 3"},
		{"Loop.Batch", "", "--batch"},
		{"Options.MemoryGrowth", "true", "--memory-growth"},
		{"Options.MemoryGrowth", "false", "--memory-growth=false"},
		{"Options.Precision", "float16", "--precision fp16"},
		{"Options.Precision", "bfloat16", "--precision bf16"},
		{"Options.VisibleGPUs", "[0 1]", "--visible-gpus"},
		{"Options.VirtualGPUs", "[[1024] [512]]", "--gpu-memory-limit"},
		{"Options.GPUAllocator", "BFC", "--gpu-allocator bfc"},
		{"Options.XLA", "on-2", "--xla"},
		{"Options.XLA", "off", "--xla=false"},
		{"Options.StepsPerExecution", "8", "--steps-per-execution 8"},
		{"Budget.Layer", string(memlayer.CgroupWorkingSet), "--memory-budget SIZE:cgroup"},
		{"Options.Cluster", "", "cluster"},
		{"TF_XLA_FLAGS", "", "TF_XLA_FLAGS"},
		{"Options.Grappler", "x", "Options.Grappler x"},
	} {
		assert.Equal(t, c.want, flagName(c.option, c.value))
	}
}

func TestParseProfile(t *testing.T) {
	for text, want := range map[string]train.Profile{"steps=1:20": {First: 1, Last: 20, File: "trace.json"},
		"steps=3:3,file=a,b": {First: 3, Last: 3, File: "a,b"}} {
		p, err := parseProfile(text)
		require.NoError(t, err)
		assert.Equal(t, want, p)
	}
	for _, text := range []string{"", "10:20", "steps=10", "steps=a:b", "steps=1:2,", "steps=1:2,file=",
		"steps=1:2,out=x"} {
		_, err := parseProfile(text)
		assert.Error(t, err, text)
	}
}
