// ckpt-trainer: a deterministic C++ trainer over ckpt.hpp, for tests that kill it.
//
// Its "model" is `tensors` tensors of I64, together `bytes` bytes, plus an eager step counter. One update is
// x <- a * x + c(seed, step), so a state follows from the one before, yet the state of any step can be computed from
// scratch: after a restore every element is compared with what it must be at that step.
//
// One line an event on stdout, flushed at once:
//   RESTORED step=N source=N attempt=N snapshot_attempt=N | SKIPPED step=N code=NAME why=SENTENCE | STEP N | SAVE N
//   DROPPED N NAME | GATE NAME | GROWN N | FORKED PID | CAPTURED N | PROTECTED N | DURABLE N | SUPERSEDED N
//   CLOSED NAME | DIGEST HEX
// Exit: 0 done; 1 the state is wrong or could not be restored (a sentence on stderr); 2 wrong usage.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <ckpt/ckpt.hpp>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/integration/meeting.h"
#include "tests/integration/trainer_options.h"

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLastWaits(2'000);

[[gnu::format(printf, 1, 2)]] void Say(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vprintf(format, arguments);
  va_end(arguments);
  putchar('\n');
  fflush(stdout);
}

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

uint64_t Mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

constexpr uint64_t kFactor = 6364136223846793005;

// All that a step computes: a trainer that waits for something goes on computing, and takes the cores from what is
// tested. Compiled with -O3, the second one handles four words at once.
void AdvanceAny(uint64_t* words, size_t count, uint64_t add) {
  for (size_t i = 0; i < count; ++i) words[i] = kFactor * words[i] + add;
}
[[gnu::target("avx2")]] void AdvanceWide(uint64_t* words, size_t count, uint64_t add) {
  for (size_t i = 0; i < count; ++i) words[i] = kFactor * words[i] + add;
}

class Model {
 public:
  // With the values of `step`.
  Model(const Options& options, uint64_t step) : options_(options), step_(step) {
    uint64_t words = std::max<uint64_t>(1, options.bytes / options.tensors / sizeof(uint64_t));
    for (uint64_t t = 0; t < options.tensors; ++t) AddTensor(words, step);
  }

  // One more tensor, with the values it would have had it been there from the start.
  void Grow(uint64_t step) { AddTensor(std::max<uint64_t>(1, options_.grow_bytes / sizeof(uint64_t)), step); }

  void Shrink() { tensors_.pop_back(); }

  void Update(uint64_t step) {
    for (auto& tensor : tensors_) advance_(tensor.data(), tensor.size(), Constant(step));
    step_ = step;
  }

  // Throws when the state is not the one of `step`.
  void Verify(uint64_t step) const {
    auto [factor, add] = AllUpdates(step);
    if (step_ != step)
      throw Failure("restored step counter is " + std::to_string(step_) + ", not " + std::to_string(step));
    for (uint64_t t = 0; t < tensors_.size(); ++t) {
      for (uint64_t i = 0; i < tensors_[t].size(); ++i) {
        if (tensors_[t][i] == factor * Initial(t, i) + add) continue;
        throw Failure("restored tensor " + Name(t) + " is not the one of step " + std::to_string(step) + " (element " +
                      std::to_string(i) + ")");
      }
    }
  }

  [[nodiscard]] uint64_t Digest() const {
    uint64_t digest = Mix(step_);
    for (const auto& tensor : tensors_) {
      for (uint64_t x : tensor) digest = Mix(digest ^ x);
    }
    return digest;
  }

  [[nodiscard]] ckpt_cpp::Table Table() const {
    ckpt_cpp::Table table;
    for (uint64_t t = 0; t < tensors_.size(); ++t)
      table.Add(Name(t), CKPT_I64, {tensors_[t].size()}, tensors_[t].data());
    table.Add("step", CKPT_U64, {}, &step_, CKPT_EAGER);
    return table;
  }

  // Where each tensor goes, by name.
  [[nodiscard]] std::map<std::string, std::pair<void*, uint64_t>> Places() {
    std::map<std::string, std::pair<void*, uint64_t>> places;
    for (uint64_t t = 0; t < tensors_.size(); ++t) {
      places[Name(t)] = {tensors_[t].data(), tensors_[t].size() * sizeof(uint64_t)};
    }
    places["step"] = {&step_, sizeof step_};
    return places;
  }

 private:
  // All updates up to `step` as one: x <- factor * x + add.
  [[nodiscard]] std::pair<uint64_t, uint64_t> AllUpdates(uint64_t step) const {
    uint64_t factor = 1;
    uint64_t add = 0;
    for (uint64_t s = 1; s <= step; ++s) {
      factor *= kFactor;
      add = kFactor * add + Constant(s);
    }
    return {factor, add};
  }

  void AddTensor(uint64_t words, uint64_t step) {
    auto [factor, add] = AllUpdates(step);
    uint64_t t = tensors_.size();
    tensors_.emplace_back(words);
    for (uint64_t i = 0; i < words; ++i) tensors_[t][i] = factor * Initial(t, i) + add;
  }

  static std::string Name(uint64_t t) { return "layer." + std::to_string(t) + ".weight"; }
  [[nodiscard]] uint64_t Initial(uint64_t t, uint64_t i) const {
    return Mix(Mix(options_.seed ^ uint64_t{options_.rank} << 48) ^ t << 40 ^ i);
  }
  [[nodiscard]] uint64_t Constant(uint64_t step) const { return Mix(options_.seed * 31 + step) | 1; }

  const Options& options_;
  void (*const advance_)(uint64_t*, size_t, uint64_t) = __builtin_cpu_supports("avx2") ? AdvanceWide : AdvanceAny;
  std::vector<std::vector<uint64_t>> tensors_;
  uint64_t step_;
};

// The data_offsets of a tensor in a header's JSON. Good enough for names without escapes.
std::pair<uint64_t, uint64_t> Offsets(const std::string& json, const std::string& name) {
  size_t at = json.find("\"" + name + "\":{");
  size_t list = at == json.npos ? at : json.find("\"data_offsets\":[", at);
  if (list == json.npos) throw Failure("the snapshot has no tensor " + name);
  const char* text = json.c_str() + list + strlen("\"data_offsets\":[");
  char* after = nullptr;
  uint64_t begin = strtoull(text, &after, 10);
  return {begin, strtoull(after + 1, nullptr, 10)};
}

class Trainer {
 public:
  explicit Trainer(const Options& options)
      : options_(options),
        model_(options, 0),
        meeting_(options.meet, options.rank, options.world),
        ck_(options.job, options.rank, options.world, 0, options.socket, milliseconds(options.gate_ms)) {}

  void Run() {
    uint64_t start = options_.restore ? Restore() : 0;
    Register();
    for (uint64_t step = start + 1; step <= options_.steps; ++step) {
      std::this_thread::sleep_for(milliseconds(options_.step_ms));
      meeting_.At(step);
      Gate(step);
      model_.Update(step);
      Say("STEP %" PRIu64, step);
      if (step == options_.grow_step) Grow(step);
      if (step % options_.every == 0 || step == options_.steps) Save(step);
      if (step == start + options_.fork_step) Fork();
      Report();
    }
    Finish();
    Say("DIGEST %016" PRIx64, model_.Digest());
  }

 private:
  void Register() {
    table_ = model_.Table();
    ck_.Register(table_, 256);
  }

  // The worker holds every descriptor open until somebody kills it.
  static void Fork() {
    const pid_t worker = fork();
    if (worker != 0) return Say("FORKED %d", worker);
    close(STDOUT_FILENO);
    for (;;) pause();
  }

  void Grow(uint64_t step) {
    model_.Grow(step);
    Register();
    Say("GROWN %" PRIu64, step);
  }

  void KillAt(const char* point, uint64_t step) const {
    if (options_.kill_point != point || options_.kill_step != step) return;
    raise(SIGKILL);
  }

  ckpt_status Load(const ckpt_restored& from) {
    bool grown = options_.grow_step != 0 && from.snapshot_step >= options_.grow_step;
    if (grown != std::exchange(grown_, grown)) grown ? model_.Grow(0) : model_.Shrink();
    std::vector<ckpt_box> boxes;
    const char* json = nullptr;
    uint64_t json_bytes = 0;
    uint64_t data = 0;
    ckpt_cpp::Check(ckpt_restore_header(ck_.get(), 0, &json, &json_bytes, &data));
    std::string text(json, json_bytes);
    for (const auto& [name, place] : model_.Places()) {
      auto [begin, end] = Offsets(text, name);
      if (end - begin != place.second) throw Failure("tensor " + name + " has another size in the snapshot");
      boxes.push_back({place.first, data + begin, place.second, 0});
    }
    KillAt("load", from.snapshot_step);
    ckpt_status status = ck_.RestoreRead(boxes);
    if (status == 0) model_.Verify(from.snapshot_step);
    return status;
  }

  uint64_t Restore() {
    uint32_t want = options_.want == "newest"  ? CKPT_WANT_NEWEST
                    : options_.want == "fresh" ? CKPT_WANT_FRESH
                                               : CKPT_WANT_STEP;
    uint64_t wanted = want == CKPT_WANT_STEP ? strtoull(options_.want.c_str(), nullptr, 10) : 0;
    ckpt_restored from = ck_.RestoreBegin(want, wanted, milliseconds(options_.restore_ms));
    for (;;) {
      std::string reason;
      ckpt_status status = from.snapshot_attempt != 0 ? Load(from) : 0;
      if (status != 0) reason = ckpt_error();
      if (ck_.RestoreEnd(status, reason, &from)) break;
    }
    for (uint32_t i = 0; i < from.skipped_count; ++i) {
      Say("SKIPPED step=%" PRIu64 " code=%s why=%s", from.skipped[i].step, ckpt_code_name(from.skipped[i].code),
          ck_.SkippedWhy(i).c_str());
    }
    Say("RESTORED step=%" PRIu64 " source=%u attempt=%" PRIu64 " snapshot_attempt=%" PRIu64, from.snapshot_step,
        from.source, from.attempt, from.snapshot_attempt);
    KillAt("restore", from.snapshot_step);
    return from.snapshot_step;
  }

  void Gate(uint64_t step) {
    if (!options_.gate) return;
    ckpt_status status = ck_.Gate();
    if (status != 0) Say("GATE %s", ckpt_code_name(status));
    KillAt("gate", step - 1);
  }

  // On a busy machine all steps may be over before the memory is prepared, or the capture before.
  void AwaitMemory() {
    const auto until = std::chrono::steady_clock::now() + kLastWaits;
    while (ck_.Info().ready == 0 && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(milliseconds(2));
    }
    if (!watched_.empty()) ck_.Wait(*watched_.rbegin(), CKPT_CAPTURED, kLastWaits);
  }

  void Save(uint64_t step) {
    const bool last = step == options_.steps && options_.close_ms > 0;
    if (last || step == options_.await_step) AwaitMemory();
    std::string extra = "{\"step\":" + std::to_string(step) + "}";
    ckpt_status status = ck_.Save(step, extra, table_.data(), last ? CKPT_WAIT_FOR_SLOT : 0);
    KillAt("save", step);
    if (status != 0) {
      Say("DROPPED %" PRIu64 " %s", step, ckpt_code_name(status));
      return;
    }
    Say("SAVE %" PRIu64, step);
    watched_.insert(step);
  }

  // What the agent said about the steps saved so far.
  void Report() {
    for (auto it = watched_.begin(); it != watched_.end();) {
      uint64_t step = *it;
      ckpt_step_state state = {};
      state.struct_bytes = sizeof state;
      bool known = ckpt_poll(ck_.get(), step, &state) == 0;
      if ((state.flags & CKPT_CAPTURED) != 0 && captured_.insert(step).second) {
        Say("CAPTURED %" PRIu64, step);
        KillAt("captured", step);
      }
      if ((state.flags & CKPT_PROTECTED) != 0 && protected_.insert(step).second) Say("PROTECTED %" PRIu64, step);
      if ((state.flags & CKPT_DROPPED) != 0) Say("DROPPED %" PRIu64 " %s", step, ckpt_code_name(state.code));
      if ((state.flags & CKPT_DURABLE) != 0) {
        Say("DURABLE %" PRIu64, step);
        KillAt("durable", step);
      }
      bool superseded = state.code == CKPT_E_SUPERSEDED && (state.flags & CKPT_DURABLE) == 0;
      if (superseded) Say("SUPERSEDED %" PRIu64, step);
      bool over = !known || superseded || (state.flags & (CKPT_DROPPED | CKPT_DURABLE)) != 0;
      it = over ? watched_.erase(it) : std::next(it);
    }
  }

  // Gates once more, so that the last save may be sealed, waits for storage, and tells.
  void Finish() {
    Gate(options_.steps + 1);
    if (!watched_.empty() && options_.close_ms > 0) {
      uint64_t last = *watched_.rbegin();
      ck_.Wait(last, CKPT_CAPTURED, milliseconds(options_.close_ms));
      Report();
      ck_.Wait(last, CKPT_DURABLE, milliseconds(options_.close_ms));
    }
    Report();
    ckpt_status status = ck_.Close(milliseconds(options_.close_ms));
    Say("CLOSED %s", ckpt_code_name(status));
  }

  const Options& options_;
  Model model_;
  Meeting meeting_;
  ckpt_cpp::Checkpointer ck_;
  ckpt_cpp::Table table_;
  bool grown_ = false;  // what is being restored
  std::set<uint64_t> watched_;
  std::set<uint64_t> captured_;
  std::set<uint64_t> protected_;
};

// Of the last step, as a run ends that nothing disturbs. Every restore finds whether training comes to the same.
void SayDigest(const Options& options) {
  Model model(options, options.steps);
  if (options.grow_step != 0 && options.grow_step <= options.steps) model.Grow(options.steps);
  Say("DIGEST %016" PRIx64, model.Digest());
}

}  // namespace

int main(int argc, char** argv) {
  Options options = ParseOptions(argc, argv);
  try {
    options.digest ? SayDigest(options) : Trainer(options).Run();
  } catch (const std::exception& error) {
    fprintf(stderr, "ckpt-trainer rank %u: %s\n", options.rank, error.what());
    return 1;
  }
  return 0;
}
