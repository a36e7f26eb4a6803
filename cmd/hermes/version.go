package main

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/hermes-framework/hermes/core"
)

// versionDoc says which program this is.
type versionDoc struct {
	Version  string `json:"version"`
	Revision string `json:"revision"` // of the source it was built from, when that is known
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (a *app) versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  args(0, 0, "argument"),
		RunE: func(*cobra.Command, []string) error {
			v := thisVersion()
			if a.json {
				return a.printJSON(v)
			}
			return a.printf("hermes %s%s, %s, %s\n", v.Version, inBrackets(v.Revision), v.Go, v.Platform)
		},
	}
	a.addJSON(cmd)

	return cmd
}

func thisVersion() versionDoc {
	v := versionDoc{Version: core.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	changed := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			v.Revision = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = "+changes"
		}
	}
	if v.Revision != "" {
		v.Revision += changed
	}

	return v
}
