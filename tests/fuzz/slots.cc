#include "tests/fuzz/slots.h"

#include <algorithm>
#include <utility>

namespace ckptd::fuzz {
namespace {

using snapshot::BellRead;
using snapshot::BellWord;
using snapshot::SlotId;

constexpr uint32_t kLayouts = 2;
constexpr uint32_t kCount = 2;

SlotId TakeSlot(Reader& in) {
  const auto bits = in.Take<uint8_t>();
  return {1 + bits % kLayouts, bits / kLayouts % kCount};
}

// Small ones meet; any number may come.
uint64_t TakeNumber(Reader& in) {
  const auto small = in.Take<uint8_t>();
  return small < 250 ? small % 8 : in.Take<uint64_t>();
}

void SetRef(Reader& in, v1::SnapshotRef* ref) {
  ref->set_attempt(TakeNumber(in) % 8);
  ref->set_step(ref->attempt() == 0 ? 0 : TakeNumber(in));
}

bool Matches(const BellWord& word, const snapshot::SealSlot& seal) {
  return word.slot == seal.slot && word.epoch == seal.epoch && word.state == CaptureState::kComplete &&
         word.crcs_valid && word.step == seal.snapshot.step;
}

}  // namespace

void Slots::Feed(const snapshot::Event& event) {
  if (const auto* attached = std::get_if<snapshot::Attached>(&event)) ticket_ = attached->ticket;
  snapshot::Effects effects;
  machine_.Step(event, effects);
  for (const snapshot::Effect& effect : effects) std::visit([this](const auto& typed) { On(typed); }, effect);
  for (const snapshot::SlotView& slot : machine_.view().slots)
    FUZZ_CHECK(slot.id.layout >= 1 && slot.id.layout <= kLayouts && slot.id.index < kCount);
}

void Slots::Reaped(snapshot::ProcessId process) {
  for (auto& [slot, grant] : grants_) grant.ended |= grant.order.owner.process == process;
  Feed(snapshot::Reaped{process});
}

void Slots::Resume(snapshot::ProcessId process, const ResumeRequest& resume) {
  Feed(snapshot::Attached{process, resume.ticket, resume.attempt});
}

void Slots::Layout(snapshot::ProcessId process) {
  for (uint32_t layout = 1; layout <= kLayouts; ++layout) Feed(snapshot::LayoutAdded{layout, kCount});
  Feed(snapshot::LayoutChosen{process, 1 + static_cast<uint32_t>(process % kLayouts)});
}

void Slots::Loaded(const LoadedRequest& loaded) {
  if (loaded.code == ErrorCode::OK) return Feed(snapshot::Loaded{loaded.attempt, loaded.ticket});
  Feed(snapshot::LoadFailed{loaded.attempt, loaded.ticket, loaded.code, loaded.reason});
}

// The words are of slots that exist, as the agent reads them by its own numbers; all else is the trainer's.
void Slots::Bell(snapshot::ProcessId process, Reader& in) {
  BellRead read;
  read.process = process;
  read.pos_attempt = TakeNumber(in);
  read.pos = TakeNumber(in);
  read.wanted_attempt = TakeNumber(in);
  read.wanted = TakeNumber(in);
  for (auto words = in.Take<uint8_t>() % 4; words > 0; --words) {
    BellWord word;
    word.slot = TakeSlot(in);
    const auto bits = in.Take<uint8_t>();
    const auto granted = grants_.find(word.slot);
    const bool now = (bits & 16) != 0 && granted != grants_.end();
    word.epoch = (now ? granted->second.order.epoch : TakeNumber(in)) & kMaxEpoch;
    word.state = static_cast<CaptureState>(bits & 3);
    word.crcs_valid = (bits & 4) != 0 && word.state == CaptureState::kComplete;
    word.rescued = (bits & 8) != 0 && word.state == CaptureState::kComplete;
    word.step = TakeNumber(in);
    word.ack = (bits & 32) != 0 ? word.epoch : 0;
    read.words.push_back(word);
    if (granted == grants_.end()) continue;
    const snapshot::OpenGrant& order = granted->second.order;
    const bool ends = word.state == CaptureState::kComplete || word.ack >= order.epoch;
    granted->second.ended |= ends && word.epoch == order.epoch && order.owner.process == process;
  }
  told_[process] = read;
  Feed(read);
}

void Slots::Coordinator(Reader& in) {
  auto state = std::make_shared<v1::State>();
  const auto bits = in.Take<uint8_t>();
  state->set_attempt(1 + in.Take<uint8_t>() % 6);
  state->set_phase(static_cast<v1::State::Phase>(bits % 3));
  if (state->phase() != v1::State::GATHER) {
    v1::DecisionRecord* decision = state->mutable_decision();
    decision->add_ranks()->set_ticket((bits & 4) != 0 ? TakeNumber(in) : ticket_);
    if ((bits & 8) != 0) SetRef(in, decision->mutable_parent());
    if ((bits & 16) != 0) SetRef(in, state->mutable_durable());
    SetRef(in, state->mutable_watermark());
    state->set_floor(TakeNumber(in));
    state->set_select_flush((bits & 32) != 0);
    if ((bits & 64) != 0) SetRef(in, state->mutable_flush());
  }
  Feed(snapshot::JobState{state});
}

void Slots::Answer(bool well) {
  if (pending_.empty()) return Feed(snapshot::RetryTimer{});
  snapshot::Event event = std::move(pending_.front());
  pending_.pop_front();
  const auto fail = [](auto& ended) {
    if constexpr (requires { ended.status; }) ended.status = Error(ErrorCode::STORAGE_IO, "input/output error");
  };
  if (!well) std::visit(fail, event);
  if (const auto* replaced = std::get_if<snapshot::FileReplaced>(&event); replaced != nullptr && well)
    grants_.erase(replaced->slot);
  Feed(event);
}

void Slots::CheckReusable(const SlotId& slot) {
  const auto before = grants_.find(slot);
  FUZZ_CHECK(before == grants_.end() || before->second.ended);
}

void Slots::On(const snapshot::OpenGrant& grant) {
  CheckReusable(grant.slot);
  FUZZ_CHECK(grant.epoch > last_epoch_ && grant.epoch <= kMaxEpoch);
  last_epoch_ = grant.epoch;
  grants_[grant.slot] = {grant, false};
  fetched_.erase(grant.slot);
}

void Slots::On(const snapshot::SealSlot& seal) {
  FUZZ_CHECK(!seal.snapshot.none());
  if (seal.source == snapshot::Source::kStorage) {
    FUZZ_CHECK(fetched_.erase(seal.slot) == 1);
    last_epoch_ = std::max(last_epoch_, seal.epoch);
    return;
  }
  const auto granted = grants_.find(seal.slot);
  FUZZ_CHECK(granted != grants_.end() && granted->second.order.epoch == seal.epoch);
  const snapshot::Owner& owner = granted->second.order.owner;
  FUZZ_CHECK(owner.attempt == seal.snapshot.attempt);
  const auto& words = told_[owner.process].words;
  FUZZ_CHECK(std::any_of(words.begin(), words.end(), [&](const BellWord& word) { return Matches(word, seal); }));
}

void Slots::On(const snapshot::FindLayout& find) {
  for (uint32_t layout = 1; layout <= kLayouts; ++layout) pending_.push_back(snapshot::LayoutAdded{layout, kCount});
  pending_.push_back(snapshot::LayoutFound{find.snapshot, 1, absl::OkStatus()});
}

void Slots::On(const snapshot::Fetch& fetch) {
  CheckReusable(fetch.slot);
  fetched_.insert(fetch.slot);
  pending_.push_back(snapshot::Fetched{fetch.slot, fetch.snapshot, absl::OkStatus()});
}

void Slots::On(const snapshot::StartFlush& flush) {
  pending_.push_back(snapshot::FlushEnded{flush.slot, flush.snapshot, absl::OkStatus()});
}

void Slots::On(const snapshot::ReplaceFile& replace) {
  pending_.push_back(snapshot::FileReplaced{replace.slot, absl::OkStatus()});
}

void Slots::On(const snapshot::SendLoad& load) {
  FUZZ_CHECK(load.snapshot.none() || (load.slot.layout >= 1 && load.slot.layout <= kLayouts));
}

}  // namespace ckptd::fuzz
