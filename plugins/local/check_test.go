//go:build unix

package local_test

import (
	"testing"

	"github.com/hermes-framework/hermes/plugin/sdk/sdktest"
	"github.com/hermes-framework/hermes/plugins/local"
)

func TestConformance(t *testing.T) { sdktest.Run(t, local.New(), "local:") }
