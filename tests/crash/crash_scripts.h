// What a job does in its life, in a few saves.
#ifndef CKPTD_TESTS_CRASH_CRASH_SCRIPTS_H_
#define CKPTD_TESTS_CRASH_CRASH_SCRIPTS_H_

#include "tests/crash/crash_node.h"

namespace ckptd::crash {

// At most so many things that wait.
void WorkSome(Node& node, int times);
// Saves of which two are on their way at once, and what retention makes of them.
void ThreeSteps(Node& node);
// The same, then back to the first of them, and on from there.
void ThreeStepsRolledBack(Node& node);
// Two steps more, a pin that is taken away again, and two deletions.
void FiveStepsDeleted(Node& node);

}  // namespace ckptd::crash

#endif  // CKPTD_TESTS_CRASH_CRASH_SCRIPTS_H_
