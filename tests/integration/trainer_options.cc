#include "tests/integration/trainer_options.h"

#include <cstdio>
#include <cstdlib>
#include <map>

namespace {

void Usage() {
  fputs(
      "usage: ckpt-trainer [--job NAME] [--socket PATH] [--rank N] [--world N] [--steps N] [--every N]\n"
      "  [--tensors N] [--bytes N] [--step-ms N] [--seed N] [--want newest|fresh|STEP] [--restore-ms N]\n"
      "  [--gate-ms N] [--close-ms N] [--grow-at STEP] [--grow-bytes N] [--fork-after STEPS] [--await-at STEP]\n"
      "  [--kill-at STEP:restore|load|save|gate|captured|durable] [--no-gate] [--no-restore] [--meet FILE]\n"
      "  [--digest]\n",
      stderr);
  exit(2);
}

void SetKill(const std::string& text, Options* options) {
  size_t colon = text.find(':');
  if (colon == text.npos) Usage();
  options->kill_step = strtoull(text.c_str(), nullptr, 10);
  options->kill_point = text.substr(colon + 1);
}

}  // namespace

Options ParseOptions(int argc, char** argv) {
  Options options;
  std::map<std::string, uint64_t*> numbers = {
      {"steps", &options.steps},        {"every", &options.every},           {"tensors", &options.tensors},
      {"bytes", &options.bytes},        {"step-ms", &options.step_ms},       {"seed", &options.seed},
      {"gate-ms", &options.gate_ms},    {"restore-ms", &options.restore_ms}, {"close-ms", &options.close_ms},
      {"grow-at", &options.grow_step},  {"grow-bytes", &options.grow_bytes}, {"fork-after", &options.fork_step},
      {"await-at", &options.await_step}};
  std::map<std::string, std::string*> texts = {
      {"job", &options.job}, {"socket", &options.socket}, {"want", &options.want}, {"meet", &options.meet}};
  std::map<std::string, bool*> switches = {
      {"--no-gate", &options.gate}, {"--no-restore", &options.restore}, {"--digest", &options.digest}};
  for (int i = 1; i < argc; ++i) {
    std::string flag = argv[i];
    if (switches.count(flag) != 0) {
      *switches[flag] = !*switches[flag];
      continue;
    }
    if (flag.rfind("--", 0) != 0 || i + 1 >= argc) Usage();
    std::string name = flag.substr(2);
    std::string value = argv[++i];
    if (numbers.count(name) != 0) {
      *numbers[name] = strtoull(value.c_str(), nullptr, 10);
    } else if (texts.count(name) != 0) {
      *texts[name] = value;
    } else if (name == "rank" || name == "world") {
      (name == "rank" ? options.rank : options.world) = static_cast<uint32_t>(strtoul(value.c_str(), nullptr, 10));
    } else if (name == "kill-at") {
      SetKill(value, &options);
    } else {
      Usage();
    }
  }
  if (options.tensors == 0 || options.every == 0) Usage();
  return options;
}
