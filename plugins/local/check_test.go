//go:build unix

package local_test

import (
	"testing"

	"github.com/hermes-framework/hermes/plugin"
	"github.com/hermes-framework/hermes/plugins/local"
)

func TestConformance(t *testing.T) {
	for _, err := range plugin.CheckBackend(t.Context(), local.New(), "local:") {
		t.Error(err)
	}
}
