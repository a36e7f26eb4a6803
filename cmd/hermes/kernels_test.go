package main

import (
	"errors"
	"testing"
	"time"

	"github.com/hermes-framework/hermes/core"
)

func TestChooseKernels(t *testing.T) {
	all := []core.KernelStatus{
		{ID: "abc123", Session: "work"}, {ID: "abd456", Session: "work"}, {ID: "ffff", Session: "abc"}, {ID: "eeee", Session: "x"},
	}
	for _, tt := range []struct {
		names []string
		want  []string
		err   int // status
	}{
		{names: []string{"abc123"}, want: []string{"abc123"}},
		{names: []string{"abd"}, want: []string{"abd456"}},
		{names: []string{"work"}, want: []string{"abc123", "abd456"}},
		{names: []string{"abc"}, want: []string{"ffff"}}, // a session's name goes before the beginning of an id
		{names: []string{"e", "x", "eeee"}, want: []string{"eeee"}},
		{names: []string{"ab"}, err: statusUsage},
		{names: []string{"x", "none"}, err: statusFailed},
		{names: []string{""}, err: statusFailed},
	} {
		got, err := chooseKernels(all, tt.names)
		if tt.err != 0 {
			if err == nil || statusOf(err) != tt.err {
				t.Errorf("chooseKernels(%q): error %v, want status %d", tt.names, err, tt.err)
			}
			continue
		}
		var ids []string
		for _, k := range got {
			ids = append(ids, k.ID)
		}
		if err != nil || len(ids) != len(tt.want) {
			t.Fatalf("chooseKernels(%q) = %q, %v; want %q", tt.names, ids, err, tt.want)
		}
		for i := range ids {
			if ids[i] != tt.want[i] {
				t.Errorf("chooseKernels(%q) = %q, want %q", tt.names, ids, tt.want)
			}
		}
	}
	if _, err := chooseKernels(nil, []string{"x"}); !errors.As(err, new(*notFoundError)) {
		t.Errorf("error %v, want a notFoundError", err)
	}
}

func TestAgo(t *testing.T) {
	now := time.Now()
	for d, want := range map[time.Duration]string{
		0: "now", 5 * time.Second: "5s ago", 90 * time.Second: "1m ago", 3 * time.Hour: "3h ago", 72 * time.Hour: "3d ago",
	} {
		if got := ago(now, now.Add(-d)); got != want {
			t.Errorf("ago(%v) = %q, want %q", d, got, want)
		}
	}
	if got := ago(now, time.Time{}); got != "-" {
		t.Errorf("ago(never) = %q, want -", got)
	}
}
