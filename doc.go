// Package hermes holds nothing but this sentence: programs import
// [github.com/hermes-framework/hermes/core], authors of backends import
// [github.com/hermes-framework/hermes/plugin], people run cmd/hermes.
package hermes
