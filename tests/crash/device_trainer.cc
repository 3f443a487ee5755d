// ckpt-device-trainer: a deterministic trainer whose state lies on the host device, for tests that strike copiers and
// agents beside it. One update is x <- a * x + c(step), by a "kernel" on its stream behind the gate; after a restore
// every word is compared with what it must be at that step.
//
// It trains until SIGUSR1 (or --steps), then closes. At --strike STEP it waits for SIGUSR1 twice: at READY, before it
// saves, and at SAVED, before it gates; ARMED is when its stream waits at the gate. From then on it trains, and saves
// again behind a third SIGUSR1, when it has an agent again (SAVES). One line an event on stdout, flushed at once:
//   RESTORED N | READY N | SAVE N | SAVED N | ARMED N | SAVES N | PULLED N | CAPTURED N | DROPPED N NAME: SENTENCE |
//   FDS N | LONGEST step=N us=N | LEFT pins=N streams=N events=N | CLOSED NAME | DIGEST N HEX
// LONGEST is the step that its gate and stream held up most. With --lockstep 1 it waits for each capture before it
// trains on. Exit: 0 done; 1 the state is wrong, a sentence on stderr.
#include <cuda.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <ckpt/ckpt.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <thread>

#include "client/core/device/testing/fake_cuda.h"
#include "tests/crash/device_model.h"

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

struct Options {
  std::map<std::string, std::string> texts = {
      {"job", "device"}, {"socket", ""}, {"path", "pull"}, {"kind", "legacy"}, {"mode", "train"}};
  std::map<std::string, uint64_t> numbers = {
      {"steps", UINT64_MAX}, {"every", 5},      {"tensors", 4},       {"words", 16384}, {"step-ms", 15},
      {"gate-ms", 400},      {"strike", 0},     {"close-ms", 10'000}, {"unexport", 0},  {"prepared-ms", 20'000},
      {"ballast", 0},        {"durable-ms", 0}, {"lockstep", 0}};

  uint64_t operator[](const char* name) const { return numbers.at(name); }
  const std::string& text(const char* name) const { return texts.at(name); }
};

template <typename... Values>
void Say(const char* format, Values... values) {
  printf(format, values...);
  putchar('\n');
  fflush(stdout);
}

// SIGUSR1, which every thread blocks. False: none came in time.
bool Told(milliseconds within) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  timespec limit = {within.count() / 1000, within.count() % 1000 * 1'000'000};
  return sigtimedwait(&set, nullptr, &limit) == SIGUSR1;
}

ckpt* Open(const Options& options) {
  ckpt_options open = {};
  open.struct_bytes = sizeof open;
  open.world = 1;
  open.job = options.text("job").c_str();
  open.socket = options.text("socket").c_str();
  open.gate_timeout_ns = options["gate-ms"] * 1'000'000;
  open.gpu_path = options.text("path") == "pull" ? CKPT_PULL : CKPT_PUSH;
  ckpt* handle = nullptr;
  ckpt_cpp::Check(ckpt_open(&open, &handle));
  return handle;
}

class Trainer {
 public:
  Trainer(const Options& options, Model& model, CUstream stream)
      : options_(options), model_(model), stream_(stream), ck_(Open(options)) {}

  void Run() {
    uint64_t step = Restore();
    Register();
    if (options_["lockstep"] != 0) AwaitMemory();
    while (step < options_["steps"] && !IsToldToEnd(step)) {
      Train(++step);
      if (step == options_["strike"]) {
        Strike(step);
      } else if (step % options_["every"] == 0 && !quiet_) {
        Save(step);
      }
      if (step == options_["unexport"]) Reexport();
      Report();
    }
    Finish(step);
  }

 private:
  void Register() {
    table_ = {};
    for (const Model::Place& place : model_.Places()) {
      const uint8_t flags = place.device ? CKPT_DEVICE : 0;
      table_.Add(place.name, CKPT_U64, {place.bytes / sizeof(uint64_t)}, place.data, flags);
    }
    ckpt_table view = table_.View(256);
    ckpt_cpp::Check(ckpt_register(ck_, &view));
    ckpt_cpp::Check(ckpt_stream(ck_, 0, stream_));
  }

  // On a busy machine all steps may be over before the agent has prepared it.
  void AwaitMemory() {
    const auto until = steady_clock::now() + milliseconds(options_["prepared-ms"]);
    while (Info().ready == 0 && steady_clock::now() < until) std::this_thread::sleep_for(milliseconds(2));
  }

  // Waits a step's time.
  [[nodiscard]] bool IsToldToEnd(uint64_t step) {
    const milliseconds time(options_["step-ms"]);
    if (quiet_) {
      told_ = told_ || Told(time);
      const ckpt_info_view info = Info();
      if (told_ && info.connected != 0 && info.ready != 0) there_ += 1;
      quiet_ = there_ < 15;  // steps, in which it hears what it may fill
      if (!quiet_) Say("SAVES %" PRIu64, step);
    } else if (step > options_["strike"]) {
      return Told(time);
    }
    std::this_thread::sleep_for(time);
    return false;
  }

  // Memory that is about to be freed, and registered again.
  void Reexport() {
    (void)ckpt_unexport(ck_, options_["gate-ms"] * 1'000'000);
    Register();
  }

  uint64_t Restore() {
    ckpt_want want = {sizeof(ckpt_want), CKPT_WANT_NEWEST, 0, 30'000'000'000, 0};
    ckpt_restored from = {};
    from.struct_bytes = sizeof from;
    ckpt_cpp::Check(ckpt_restore_begin(ck_, &want, &from));
    ckpt_status status = CKPT_RELOAD;
    while (status == CKPT_RELOAD) {
      const ckpt_status read = from.snapshot_attempt != 0 ? Load(from) : 0;
      status = ckpt_restore_end(ck_, read, read != 0 ? ckpt_error() : "", &from);
      ckpt_cpp::Check(status);
    }
    Say("RESTORED %" PRIu64, from.snapshot_step);
    return from.snapshot_step;
  }

  ckpt_status Load(const ckpt_restored& from) {
    const char* json = nullptr;
    uint64_t json_bytes = 0;
    uint64_t data = 0;
    ckpt_cpp::Check(ckpt_restore_header(ck_, 0, &json, &json_bytes, &data));
    const std::string text(json, json_bytes);
    std::vector<ckpt_box> boxes;
    for (const Model::Place& place : model_.Places()) {
      const size_t at = text.find("\"data_offsets\":[", text.find("\"" + place.name + "\":{"));
      if (at == text.npos) throw Failure("the snapshot has no tensor " + place.name);
      const uint64_t begin = strtoull(text.c_str() + at + strlen("\"data_offsets\":["), nullptr, 10);
      boxes.push_back({place.data, data + begin, place.bytes, place.device ? uint64_t{CKPT_DEVICE} : 0});
    }
    const ckpt_status status = ckpt_restore_read(ck_, boxes.data(), boxes.size());
    if (status == 0) model_.Verify(from.snapshot_step);
    return status;
  }

  void Train(uint64_t step) {
    const auto begin = steady_clock::now();
    const ckpt_status status = ckpt_gate_stream(ck_, stream_, 0);
    if (step == options_["strike"] + 1) Say("ARMED %" PRIu64, step - 1);
    if (status != 0) Say("GATE %s", ckpt_code_name(status));
    model_.Update(stream_, step);
    const auto held = std::chrono::duration_cast<std::chrono::microseconds>(steady_clock::now() - begin);
    if (held <= longest_) return;
    longest_ = held;
    longest_step_ = step;
  }

  void Save(uint64_t step) {
    const std::string extra = "{}";
    const ckpt_status status = ckpt_save(ck_, step, extra.data(), extra.size(), nullptr, CKPT_WAIT_FOR_SLOT);
    if (status == 0) Say("SAVE %" PRIu64, step);
    watched_.insert(step);
    if (options_["lockstep"] == 0) return;
    (void)ckpt_gate_stream(ck_, stream_, 0);
    (void)ckpt_wait(ck_, step, CKPT_CAPTURED, options_["close-ms"] * 1'000'000);
  }

  void Strike(uint64_t step) {
    const auto until = steady_clock::now() + milliseconds(options_["prepared-ms"]);
    while (Info().gpu_path != CKPT_PULL && steady_clock::now() < until) {
      std::this_thread::sleep_for(milliseconds(2));
    }
    Say("FDS %zu", Descriptors());
    Say("READY %" PRIu64, step);
    Told(milliseconds(20'000));
    Save(step);
    Say("SAVED %" PRIu64, step);
    Told(milliseconds(20'000));
    quiet_ = true;
  }

  void Report() {
    const ckpt_info_view info = Info();
    if (info.pulled != pulled_) Say("PULLED %" PRIu64, pulled_ = info.pulled);
    for (auto it = watched_.begin(); it != watched_.end();) {
      ckpt_step_state state = {};
      state.struct_bytes = sizeof state;
      const bool known = ckpt_poll(ck_, *it, &state) == 0;
      if ((state.flags & CKPT_CAPTURED) != 0) Say("CAPTURED %" PRIu64, *it);
      if ((state.flags & CKPT_DROPPED) != 0) {
        Say("DROPPED %" PRIu64 " %s: %s", *it, ckpt_code_name(state.code), info.last_sentence);
      }
      const bool over =
          !known || state.code == CKPT_E_SUPERSEDED || (state.flags & (CKPT_DROPPED | CKPT_CAPTURED)) != 0;
      it = over ? watched_.erase(it) : std::next(it);
    }
  }

  // The last save is of the last step, and outlives the process.
  void Finish(uint64_t step) {
    Train(++step);
    Save(step);
    (void)ckpt_gate_stream(ck_, stream_, 0);
    (void)ckpt_wait(ck_, step, CKPT_CAPTURED, options_["close-ms"] * 1'000'000);
    Report();
    Say("FDS %zu", Descriptors());
    const ckpt_status closed = ckpt_close(std::exchange(ck_, nullptr), options_["durable-ms"] * 1'000'000);
    Say("CLOSED %s", ckpt_code_name(closed));
    fakecuda_counts left = {};
    fakecuda_count(&left);
    Say("LEFT pins=%" PRIu64 " streams=%" PRIu64 " events=%" PRIu64, left.pinned_ranges, left.streams - 1, left.events);
    Say("LONGEST step=%" PRIu64 " us=%" PRId64, longest_step_, static_cast<int64_t>(longest_.count()));
    Say("DIGEST %" PRIu64 " %016" PRIx64, step, model_.Digest());
  }

  [[nodiscard]] ckpt_info_view Info() const {
    ckpt_info_view info = {};
    info.struct_bytes = sizeof info;
    ckpt_cpp::Check(ckpt_info(ck_, &info));
    return info;
  }

  static size_t Descriptors() {
    const auto all = std::filesystem::directory_iterator("/proc/self/fd");
    return static_cast<size_t>(std::distance(begin(all), end(all)));
  }

  const Options& options_;
  Model& model_;
  const CUstream stream_;
  ckpt* ck_;
  ckpt_cpp::Table table_;
  std::set<uint64_t> watched_;
  uint64_t pulled_ = 0;
  bool quiet_ = false;
  bool told_ = false;
  uint64_t there_ = 0;  // steps with an agent since it was told
  std::chrono::microseconds longest_{0};
  uint64_t longest_step_ = 0;
};

Options Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = std::string(argv[i]).substr(2);
    if (options.texts.count(name) != 0) {
      options.texts[name] = argv[i + 1];
    } else if (options.numbers.count(name) != 0) {
      options.numbers[name] = strtoull(argv[i + 1], nullptr, 10);
    } else {
      throw Failure("no option " + name);
    }
  }
  return options;
}

void Train(const Options& options, CUstream stream) {
  const bool vmm = options.text("kind") == "vmm";
  Model model({options["tensors"], options["words"], options["ballast"], vmm});
  if (options.text("mode") != "alone") return Trainer(options, model, stream).Run();
  for (uint64_t step = 1; step <= options["steps"]; ++step) model.Update(stream, step);
  Say("DIGEST %" PRIu64 " %016" PRIx64, options["steps"], model.Digest());
}

void Run(const Options& options) {
  Must(cuInit(0), "cuInit");
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  Must(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
  Must(cuCtxPushCurrent(context), "cuCtxPushCurrent");
  Must(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  Train(options, stream);
  Must(cuStreamDestroy(stream), "cuStreamDestroy");
}

}  // namespace

int main(int argc, char** argv) {
  sigset_t told;
  sigemptyset(&told);
  sigaddset(&told, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &told, nullptr);
  try {
    Run(Parse(argc, argv));
  } catch (const std::exception& error) {
    fprintf(stderr, "ckpt-device-trainer: %s\n", error.what());
    return 1;
  }
  return 0;
}
