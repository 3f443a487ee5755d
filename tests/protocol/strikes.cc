// Deaths at the moments for which a rule was made, where chance alone would take hundreds of millions of steps.
#include "tests/protocol/world.h"

namespace ckptd::sim {

// An attempt is decided: its coordinator dies before it knows.
void World::StrikeAtDecision(int node) {
  if (!options_.strikes || healing_ || doomed_ >= 0 || !random_.Chance(500)) return;
  doomed_ = node;
}

// An owner that has not heard of the new attempt orders a copy at a holder that has: then the owner's node is lost.
void World::StrikeAtOldOrder(int from, int to, AttemptId ordered) {
  const Agent* holder = nodes_[to].agent.get();
  const bool old = holder != nullptr && ordered < nodes_[to].region.seen;
  if (!options_.strikes || healing_ || !old || !random_.Chance(500)) return;
  LoseNode(from);
}

void World::Doom() {
  if (doomed_ < 0) return;
  StopAgent(doomed_);
  doomed_ = -1;
  ++counts_.faults;
}

}  // namespace ckptd::sim
