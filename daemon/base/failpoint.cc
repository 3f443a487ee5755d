#include "daemon/base/failpoint.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "daemon/base/errors.h"

namespace ckptd {
namespace {

struct Action {
  std::string verb;
  int argument = 0;
  int only_hit = 0;  // 0 = every hit
  std::atomic<int> hits{0};
};

using Table = std::map<std::string, std::unique_ptr<Action>, std::less<>>;

void Parse(absl::string_view entry, Table& table) {
  std::pair<absl::string_view, absl::string_view> named = absl::StrSplit(entry, absl::MaxSplits('=', 1));
  auto action = std::make_unique<Action>();
  std::pair<absl::string_view, absl::string_view> counted = absl::StrSplit(named.second, absl::MaxSplits('@', 1));
  std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(counted.first, absl::MaxSplits(':', 1));
  action->verb = std::string(parts.first);
  (void)absl::SimpleAtoi(parts.second, &action->argument);
  (void)absl::SimpleAtoi(counted.second, &action->only_hit);
  table.emplace(std::string(named.first), std::move(action));
}

const Table& Armed() {
  static const Table* table = [] {
    auto* made = new Table();
    const char* text = std::getenv("CKPTD_FAILPOINTS");
    for (absl::string_view entry : absl::StrSplit(text ? text : "", ',', absl::SkipEmpty())) Parse(entry, *made);
    return made;
  }();
  return *table;
}

absl::Status Act(const Action& action, const char* name) {
  if (action.verb == "kill") kill(getpid(), SIGKILL);
  if (action.verb == "stop") raise(SIGSTOP);
  if (action.verb == "sleep") std::this_thread::sleep_for(std::chrono::milliseconds(action.argument));
  if (action.verb == "error") return ErrnoError(action.argument, "failpoint", name);
  return absl::OkStatus();
}

}  // namespace

absl::Status HitFailpoint(const char* name) {
  const Table& table = Armed();
  if (table.empty()) return absl::OkStatus();
  auto found = table.find(absl::string_view(name));
  if (found == table.end()) return absl::OkStatus();
  int hit = ++found->second->hits;
  if (found->second->only_hit != 0 && hit != found->second->only_hit) return absl::OkStatus();
  return Act(*found->second, name);
}

}  // namespace ckptd
