//go:build !linux

package core_test

import (
	"errors"
	"math/rand/v2"
)

// smallDisk is for Linux.
func smallDisk(string, *rand.Rand) (stop func(), err error) { return nil, errors.ErrUnsupported }
