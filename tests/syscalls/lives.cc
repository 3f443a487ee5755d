#include "tests/syscalls/lives.h"

#include <algorithm>

#include "tests/crash/crash_scripts.h"

namespace ckptd::syscalls {
namespace {

crash::NodeOptions OptionsOf(uint32_t world, uint32_t keep_last) {
  crash::NodeOptions options;
  options.world = world;
  options.retention.keep_last = keep_last;
  options.stubborn = true;
  return options;
}

void Recover(crash::Node& node) {
  (void)node.Restore();
  node.Drain();
}

}  // namespace

const std::vector<Life>& Lives() {
  static const std::vector<Life> lives = {
      {"publish", OptionsOf(1, 1), crash::ThreeSteps},
      {"no hard links", OptionsOf(1, 1), crash::ThreeSteps, /*links=*/false},
      {"roll-back", OptionsOf(2, 3), crash::ThreeStepsRolledBack},
      {"retention", OptionsOf(2, 2), crash::FiveStepsDeleted},
      {kRecovery, OptionsOf(2, 2), Recover},
  };
  return lives;
}

const Life* FindLife(const std::string& name) {
  const auto& lives = Lives();
  const auto found = std::find_if(lives.begin(), lives.end(), [&](const Life& life) { return life.name == name; });
  return found == lives.end() ? nullptr : &*found;
}

}  // namespace ckptd::syscalls
