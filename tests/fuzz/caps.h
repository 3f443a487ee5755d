// The caps of one input. Exceeding one of them is a finding: a message on stderr and SIGABRT, on the stack of whoever
// did it.
#ifndef CKPTD_TESTS_FUZZ_CAPS_H_
#define CKPTD_TESTS_FUZZ_CAPS_H_

#include "tests/fuzz/fuzz.h"

namespace ckptd::fuzz {

// Run() within the caps. Only what its own thread allocates counts.
void RunCapped(Input input);

}  // namespace ckptd::fuzz

#endif  // CKPTD_TESTS_FUZZ_CAPS_H_
