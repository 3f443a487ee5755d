#include "tests/syscalls/sweep.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "daemon/os/testing/temp_dir.h"
#include "tests/crash/crash_parts.h"
#include "tests/syscalls/ack_file.h"
#include "tests/syscalls/look.h"
#include "tests/syscalls/strace.h"

namespace ckptd::syscalls {
namespace {

namespace fs = std::filesystem;
using harness::Child;

constexpr char kMissed[] = "nobody was hit";

// What a life begins with.
struct Start {
  std::string folder;  // its storage is copied; "" = an empty one
  crash::Promise promise;
};

struct Point {
  Call call;
  std::string error;      // kErrors
  uint64_t transfer = 0;  // kShort
};

// One life in a folder of its own, again and again.
class Runner {
 public:
  Runner(const Life& life, std::string mutant) : life_(life), mutant_(std::move(mutant)) {}

  [[nodiscard]] Program Fresh(const Start& start, uint64_t transfer = 0) {
    fs::remove_all(folder_.path() + crash::kRoot);
    fs::remove(folder_.path() + "/acks");
    if (start.folder.empty()) fs::create_directory(folder_.path() + crash::kRoot);
    if (!start.folder.empty()) {
      fs::copy(start.folder + crash::kRoot, folder_.path() + crash::kRoot, fs::copy_options::recursive);
    }
    Program program;
    program.argv = {harness::BinaryDirectory() + "/syscall-node", folder_.path(), life_.name, mutant_,
                    std::to_string(transfer)};
    program.folder = folder_.path();
    program.traced = ",fsync,linkat,renameat2,mkdirat,unlinkat";
    if (!life_.links) program.always = {"--inject=linkat:error=EPERM"};
    return program;
  }

  [[nodiscard]] std::vector<Call> Calls(const Start& start) {
    std::vector<Call> calls = Swept(List(Fresh(start)).calls);
    if (!life_.links) std::erase_if(calls, [](const Call& call) { return call.name == "linkat"; });
    return calls;
  }
  [[nodiscard]] Told Acks(const Start& start) const { return ReadAcks(folder_.path() + "/acks", start.promise); }
  [[nodiscard]] const std::string& folder() const { return folder_.path(); }
  [[nodiscard]] const Life& life() const { return life_; }

 private:
  const Life& life_;
  const std::string mutant_;
  TempDir folder_{"/dev/shm"};
};

std::string WrongLeft(Runner& runner, const Start& start) {
  return WrongBelow(runner.folder(), runner.life().options, runner.Acks(start).promise);
}

std::string Killed(Runner& runner, const Start& start, const Point& point) {
  const Traced traced = KillAt(runner.Fresh(start), point.call);
  if (traced.status != -SIGKILL || !traced.killed) return absl::StrCat(kMissed, ": status ", traced.status);
  return WrongLeft(runner, start);
}

// "/a/b" of "fsync(5</a/b>) = ...".
std::string PathIn(const std::string& line) {
  const size_t begin = line.find('<'), end = line.find('>');
  return begin == line.npos || end == line.npos ? "" : line.substr(begin + 1, end - begin - 1);
}

using Names = std::set<std::string>;
using Calls = absl::Span<const Call>;

bool Worked(const Call& call) { return absl::EndsWith(call.line, "= 0"); }

// Of `"x"` in a directory, as in mkdirat(5</a/b>, "x", 0755): "x". Empty: the call is about no name in it.
std::string NameIn(const fs::path& directory, const Call& call) {
  const std::string begin = absl::StrCat("<", directory.string(), ">, \"");
  const size_t at = call.line.find(begin);
  if (at == call.line.npos) return "";
  const size_t name = at + begin.size();
  return call.line.substr(name, call.line.find('"', name) - name);
}

// Directories that were made in this one and are not known to be durable. None: it is a directory of files.
std::optional<Names> InDoubt(const fs::path& directory, Calls before) {
  Names names;
  for (const Call& call : before) {
    if (call.name == "fsync" && PathIn(call.line) == directory && Worked(call)) names.clear();
    const std::string name = NameIn(directory, call);
    if (name.empty()) continue;
    if (call.name == "linkat" || call.name == "renameat2") return std::nullopt;
    if (call.name == "mkdirat" && Worked(call)) names.insert(name);
  }
  return names;
}

// The next mkdir writes a directory's blocks anew, so its fsync may be asked for again; but what was new when it failed
// may be lost until it is removed and made again, and nobody may write into that.
std::string TrustedIn(const fs::path& directory, Names doubted, Calls after) {
  constexpr absl::string_view kWrites[] = {"mkdirat", "linkat", "renameat2", "fsync"};
  for (const Call& call : after) {
    if (call.name == "unlinkat" && Worked(call)) doubted.erase(NameIn(directory, call));
    if (std::find(std::begin(kWrites), std::end(kWrites), call.name) == std::end(kWrites)) continue;
    for (const std::string& name : doubted) {
      const std::string below = absl::StrCat("<", (directory / name).string());
      const bool within = absl::StrContains(call.line, below + ">") || absl::StrContains(call.line, below + "/");
      if (within) return absl::StrCat("trusted after a failed fsync of the directory above: ", call.line);
    }
  }
  return "";
}

// After a failed fsync the kernel may call lost pages clean: nobody may ask again, or give the file its name.
std::string Trusted(const Traced& traced) {
  if (!absl::StartsWith(traced.injected, "fsync(")) return "";
  const fs::path path = PathIn(traced.injected);
  const std::string name = absl::StrCat("<", path.parent_path().string(), ">, \"", path.filename().string(), "\"");
  const auto failed = std::find_if(traced.calls.begin(), traced.calls.end(),
                                   [&](const Call& call) { return call.line == traced.injected; });
  const auto at = static_cast<size_t>(failed - traced.calls.begin());
  const Calls calls(traced.calls);
  const std::optional<Names> doubted = fs::is_directory(path) ? InDoubt(path, calls.first(at)) : std::optional<Names>();
  if (doubted) return TrustedIn(path, *doubted, calls.subspan(at + 1));
  for (const Call& later : calls.subspan(at + 1)) {
    const bool names = later.name == "linkat" || later.name == "renameat2";
    const bool same = later.name == "fsync" ? PathIn(later.line) == path : absl::StrContains(later.line, name);
    if (same && (names || later.name == "fsync")) return absl::StrCat("trusted after a failed fsync: ", later.line);
  }
  return "";
}

// How it ended, and where it came to. A directory of files whose fsync failed is refused until the agent starts
// anew.
std::string WrongEnd(const Told& told, int status, int leaked) {
  if (status == Child::kHangs) return "hangs";
  if (status != 0 || !told.end) return absl::StrCat("crashed: status ", status);
  if (!told.end->wrong.empty()) return told.end->wrong;
  if (told.end->fds > leaked) return absl::StrCat("leaks: ", told.end->fds, " descriptors are left");
  return "";
}

std::string Failed(Runner& runner, const Start& start, const Point& point, StepId goal) {
  const Traced traced = FailAt(runner.Fresh(start), point.call, point.error);
  if (traced.injected.empty()) return absl::StrCat(kMissed, ": status ", traced.status);
  const Told told = runner.Acks(start);
  // strace does not run the call: the kernel would have closed.
  std::string wrong = WrongEnd(told, traced.status, point.call.name == "close" ? 1 : 0);
  if (wrong.empty()) wrong = Trusted(traced);
  const bool directory = point.call.name == "fsync" && !absl::StrContains(point.call.line, "/.tmp-");
  if (wrong.empty() && !directory && !told.promise.skipped && told.end->durable.step < goal) {
    wrong = absl::StrCat("the error is gone, and it came to ", ToString(told.end->durable), " only");
  }
  return wrong.empty() ? WrongLeft(runner, start) : wrong;
}

std::string Shortened(Runner& runner, const Start& start, const Point& point, StepId goal) {
  const Program program = runner.Fresh(start, point.transfer);
  Child child({program.argv, {}, program.folder + "/stderr"});
  const int status = child.Wait(program.limit);
  const Told told = runner.Acks(start);
  std::string wrong = WrongEnd(told, status, 0);
  if (wrong.empty() && told.end->durable.step < goal) {
    wrong = absl::StrCat("came to ", ToString(told.end->durable), " only");
  }
  return wrong.empty() ? WrongLeft(runner, start) : wrong;
}

bool Transfers(const Call& call) { return call.name == "pread64" || call.name == "pwrite64"; }

std::vector<Point> PointsOf(const std::vector<Call>& calls, Harm harm, const std::string& only) {
  std::vector<Point> points;
  uint64_t transfer = 0;
  for (const Call& call : calls) {
    if (harm == Harm::kKill) points.push_back({call, "", 0});
    if (harm == Harm::kShort && Transfers(call)) points.push_back({call, "", ++transfer});
    if (harm != Harm::kErrors || call.name == "futex" || (!only.empty() && call.name != only)) continue;
    for (const char* error : kErrors) points.push_back({call, error, 0});
  }
  return points;
}

// Storages that an agent left which was killed while it deleted, committed or gave a name.
std::vector<Start> KilledStarts(Runner& runner, const Plan& plan, const std::string& folder) {
  const std::vector<Call> calls = runner.Calls({});
  std::vector<Call> named;
  std::copy_if(calls.begin(), calls.end(), std::back_inserter(named),
               [](const Call& call) { return call.name == "linkat" || call.name == "unlinkat"; });
  std::vector<Start> starts;
  for (size_t i = 0; i < plan.starts && !named.empty(); ++i) {
    const Call& call = named[(2 * i + 1) * named.size() / (2 * plan.starts)];
    if (!KillAt(runner.Fresh({}), call).killed) return {};
    Start start{absl::StrCat(folder, "/", i), runner.Acks({}).promise};
    fs::create_directory(start.folder);
    fs::copy(runner.folder() + crash::kRoot, start.folder + crash::kRoot, fs::copy_options::recursive);
    if (plan.harm == Harm::kErrors) {
      start.promise.may_skip = true;
    } else {
      start.promise.least = RecoverBelow(runner.folder(), runner.life().options).id;
      start.promise.exact = true;
    }
    starts.push_back(std::move(start));
  }
  return starts;
}

std::vector<Start> StartsOf(const Life& life, const Plan& plan, const std::string& folder) {
  if (life.name == kRecovery) {
    Runner before(*FindLife("retention"), "");
    return KilledStarts(before, plan, folder);
  }
  Start empty;
  empty.promise.may_skip = plan.harm == Harm::kErrors;
  return {empty};
}

class Part {
 public:
  Part(const Life& life, const Plan& plan, uint64_t part) : plan_(plan), part_(part), runner_(life, plan.mutant) {}

  crash::Tally Sweep() {
    const TempDir folder("/dev/shm");
    const std::vector<Start> starts = StartsOf(runner_.life(), plan_, folder.path());
    if (starts.empty()) return {0, 0, 1, "the agent before was not killed"};
    for (const Start& start : starts) {
      const std::vector<Call> calls = runner_.Calls(start);
      const Told told = runner_.Acks(start);
      if (calls.empty() || !told.end) return {0, 0, 1, "the life does not come to its end when nobody disturbs it"};
      goal_ = start.folder.empty() ? told.end->durable.step : 0;
      Go(start, PointsOf(calls, plan_.harm, plan_.call));
    }
    return tally_;
  }

 private:
  void Go(const Start& start, const std::vector<Point>& points) {
    for (const Point& point : points) {
      if (number_++ % (plan_.stride * plan_.parts) != part_ * plan_.stride) continue;
      if (tally_.violations != 0) return;
      ++tally_.tried;
      // Temporary names are random, and with them the order of a directory: a life may have a call more or less.
      std::string wrong = Look(start, point);
      for (int tries = 0; tries < 5 && absl::StartsWith(wrong, kMissed); ++tries) wrong = Look(start, point);
      if (wrong.empty()) continue;
      ++tally_.violations;
      tally_.first = absl::StrCat(wrong, " [", point.error, " at ", point.call.name, " ", point.call.number, ": ",
                                  point.call.line, "]");
    }
  }
  std::string Look(const Start& start, const Point& point) {
    if (plan_.harm == Harm::kKill) return Killed(runner_, start, point);
    if (plan_.harm == Harm::kShort) return Shortened(runner_, start, point, goal_);
    return Failed(runner_, start, point, goal_);
  }

  const Plan& plan_;
  const uint64_t part_;
  Runner runner_;
  StepId goal_ = 0;
  uint64_t number_ = 0;
  crash::Tally tally_;
};

}  // namespace

bool Night() {
  const char* night = std::getenv("CKPTD_NIGHTLY");
  return night != nullptr && *night != '\0';
}

uint64_t ErrorStride() {
  if (const char* given = std::getenv("CKPTD_ERROR_STRIDE")) return std::max(1UL, std::strtoul(given, nullptr, 10));
  return Night() ? 1 : 160;
}

crash::Tally Sweep(const Life& life, const Plan& plan) {
  return crash::ExploreInParts(plan.parts, [&](uint64_t part) { return Part(life, plan, part).Sweep(); });
}

}  // namespace ckptd::syscalls
