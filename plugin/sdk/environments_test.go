package sdk_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hermes-framework/hermes/plugin/sdk"
)

type counted struct {
	sdk.UnimplementedEnvironment
	n int64
}

func TestEnvironmentsOpensOnceAndClosesOnce(t *testing.T) {
	var table sdk.Environments[*counted]
	var opened, closed atomic.Int64
	release := make(chan struct{})
	open := func(context.Context) (*counted, error) {
		<-release
		return &counted{n: opened.Add(1)}, nil
	}
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			if e, err := table.Open(t.Context(), "a", open); err != nil || e.n != 1 {
				t.Errorf("got %+v, %v", e, err)
			}
		})
	}
	if _, ok := table.Get("a"); ok {
		t.Error("an environment that is still being opened was found")
	}
	close(release)
	wg.Wait()

	for range 64 {
		wg.Go(func() {
			err := table.Close(t.Context(), "a", func(context.Context, *counted) error {
				closed.Add(1)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if opened.Load() != 1 || closed.Load() != 1 {
		t.Errorf("opened %d times, closed %d times", opened.Load(), closed.Load())
	}
	if e, err := table.Open(t.Context(), "a", open); err != nil || e.n != 2 {
		t.Errorf("after Close: got %+v, %v, want a new one", e, err)
	}
}

func TestEnvironmentsForgetsFailuresAndPanics(t *testing.T) {
	var table sdk.Environments[*counted]
	failure := errors.New("no")
	if _, err := table.Open(t.Context(), "a", func(context.Context) (*counted, error) { return nil, failure }); !errors.Is(err, failure) {
		t.Errorf("got %v", err)
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = table.Open(t.Context(), "a", func(context.Context) (*counted, error) { panic("no") })
	}()
	if _, err := table.Open(t.Context(), "a", func(context.Context) (*counted, error) { return &counted{}, nil }); err != nil {
		t.Errorf("after a failure and a panic: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	hang := make(chan struct{})
	var wg sync.WaitGroup
	inOpen := make(chan struct{})
	wg.Go(func() {
		_, _ = table.Open(t.Context(), "b", func(context.Context) (*counted, error) {
			close(inOpen)
			<-hang
			return &counted{}, nil
		})
	})
	<-inOpen
	if _, err := table.Open(ctx, "b", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting with an ended ctx: got %v", err)
	}
	close(hang)
	wg.Wait()
}
