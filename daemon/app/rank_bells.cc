// What the trainers of a rank tell by their bells, and what is concluded where they tell nothing.
#include <algorithm>

#include "daemon/app/rank_runner.h"
#include "daemon/app/rescuer.h"

namespace ckptd {

void RankRunner::OnHint(snapshot::ProcessId process) {
  Stream(process);
  Feed(ReadBells(process));
}

// A fill whose word is not of the epoch that was granted: the trainer wrote over it, and will neither complete nor
// acknowledge it any more. Nor will it one of a layout that it left while there was no agent. To the machine it was
// abandoned, and its writer is unknown; else no slot would be lent to this process again.
snapshot::BellRead RankRunner::ReadBells(snapshot::ProcessId process) {
  snapshot::BellRead read = bells_.Read(process);
  for (const auto& [layout, set] : region_.layouts()) {
    const bool known = bells_.Find(process, layout) != nullptr;
    for (uint32_t index = 0; index < set->slot_count(); ++index) {
      const region::SlotSnapshot& slot = set->Slot(index);
      const snapshot::SlotId id{layout, index};
      const bool fills =
          slot.state == SlotStateCode::kFilling && PackProcess({slot.owner.pid, slot.owner.start_time}) == process;
      const bool told = std::any_of(read.words.begin(), read.words.end(), [&](const snapshot::BellWord& word) {
        return word.slot == id && word.epoch == slot.epoch;
      });
      if (fills && !told && (known || IsBack(process)))
        read.words.push_back({id, slot.epoch, CaptureState::kAbandoned, 0, 0, false});
    }
  }
  JudgeRescued(read);
  return read;
}

// It trains under this agent: RESUME has brought the only bell that it keeps, that of its present layout.
bool RankRunner::IsBack(snapshot::ProcessId process) const {
  const snapshot::View view = machine_.view();
  return view.process == process && view.running != 0;
}

// Fills above `pos` count when the agent knows, too, that their process is dead, and holds nothing against its rescue:
// a hint of its copier may come before. One that must not count was abandoned.
void RankRunner::JudgeRescued(snapshot::BellRead& read) const {
  const Rescues::Standing standing = services_.rescuer.Of(UnpackProcess(read.process));
  if (standing == Rescues::Standing::kHeld) return;
  const auto rescued = [](const snapshot::BellWord& word) { return word.rescued; };
  if (standing == Rescues::Standing::kLives) {
    read.words.erase(std::remove_if(read.words.begin(), read.words.end(), rescued), read.words.end());
  }
  for (snapshot::BellWord& word : read.words) {
    if (word.rescued && standing == Rescues::Standing::kRefused) word.state = CaptureState::kAbandoned;
    word.rescued = false;
  }
}

}  // namespace ckptd
