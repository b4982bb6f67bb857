package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"steadyfit/internal/tflibrary"
)

func newVersion(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of steadyfit and of the TensorFlow in use",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			w := cmd.OutOrStdout()
			if _, err := fmt.Fprintf(w, "steadyfit %s (%s, %s/%s)\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH); err != nil {
				return err
			}
			info, err := s.load()
			if err != nil {
				if s.TensorFlow != "" {
					return err
				}
				// A missing TensorFlow is not an error, unless a flag names one.
				_, err = fmt.Fprintf(w, "TensorFlow: none (supported: %s to %s; see steadyfit doctor)\n", tflibrary.MinVersion, tflibrary.MaxVersion)
				return err
			}
			_, err = fmt.Fprintf(w, "TensorFlow %s (%s)\n", info.Version, info.Library)
			return err
		},
	}
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}
