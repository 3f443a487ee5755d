#include "tests/crash/crash_scripts.h"

namespace ckptd::crash {

void WorkSome(Node& node, int times) {
  for (int i = 0; i < times; ++i) (void)node.Work();
}

void ThreeSteps(Node& node) {
  (void)node.Restore();
  node.Save(1);
  node.Drain();
  node.Save(2);
  WorkSome(node, 6);
  node.Save(3);
  node.Drain();
}

void ThreeStepsRolledBack(Node& node) {
  ThreeSteps(node);
  (void)node.RollBack({1, 1});
  node.Save(2);
  node.Drain();
  node.Save(3);
  node.Drain();
}

void FiveStepsDeleted(Node& node) {
  constexpr SnapshotId kSecond{1, 2};
  ThreeSteps(node);
  node.SetPinned(kSecond, true);
  node.Save(4);
  node.Drain();
  node.Save(5);
  node.Drain();
  node.SetPinned(kSecond, false);
  node.Delete(kSecond);
  node.Delete({1, 4});
  node.Drain();
}

}  // namespace ckptd::crash
