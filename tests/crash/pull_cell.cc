#include "tests/crash/pull_cell.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <thread>

#include "proto/local/copier.h"
#include "tests/crash/wrong_packets.h"
#include "tests/integration/sanitized.h"
#include "tests/integration/scribble.h"

namespace ckptd::harness {
namespace {

namespace fs = std::filesystem;

constexpr Millis kSlack{kSanitized ? 2'000 : 300};  // for processes that share two cores with everything else
constexpr Millis kStop = PullCell::kGate + Millis(250);
constexpr char kGatePage[] = "gate page";
constexpr char kControl[] = "/device/rank-00000/ctl.";  // of the trainer's job

std::string Content(const fs::path& path) {
  std::stringstream text;  // which does not throw where the process ends meanwhile
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

char StateOf(pid_t pid) {
  const std::string stat = Content("/proc/" + std::to_string(pid) + "/stat");
  const size_t end = stat.rfind(')');
  return end == stat.npos || end + 2 >= stat.size() ? '?' : stat[end + 2];
}

// Until it holds, for what no descriptor tells of.
template <typename Condition>
bool Eventually(Condition holds, Millis within = kLong) {
  for (const auto end = std::chrono::steady_clock::now() + within; !holds();) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(Millis(10));  // a look at all of /proc
  }
  return true;
}

// The line of the last save.
GateLine* Newest(const SharedMemory& page) {
  auto& lines = reinterpret_cast<GatePage*>(page.maps().front().memory)->lines;
  return std::max_element(std::begin(lines), std::end(lines),
                          [](const GateLine& a, const GateLine& b) { return a.ready < b.ready; });
}

Child::Spec TrainerSpec(const Node& node, const std::string& line, std::vector<std::string> environment) {
  std::vector<std::string> argv = {BinaryDirectory() + "/ckpt-device-trainer", "--socket", node.socket()};
  for (const std::string& word : Args(line)) argv.push_back(word);
  return {std::move(argv), std::move(environment), node.base() + "/device.log"};
}

}  // namespace

std::vector<pid_t> ProcessesWith(const std::string& program, const std::string& variable) {
  std::vector<pid_t> pids;
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator("/proc", gone)) {
    const std::string name = entry.path().filename();
    if (isdigit(static_cast<unsigned char>(name[0])) == 0 || Content(entry.path() / "comm") != program + "\n") continue;
    if (Content(entry.path() / "environ").find(variable) != std::string::npos) pids.push_back(std::stoi(name));
  }
  return pids;
}

const char* NameOf(Blow blow) {
  static constexpr const char* kNames[] = {
      "KillCopier",    "StopCopier",    "StopThenKillCopier", "GarbageOfCopier", "WrongAnswersOfCopier",
      "ScribbledGate", "ScribbledBell", "KillAgent",          "StopAgent",       "ScribbledControl",
      "KillBoth",      "StopBoth",      "ScribbledBoth"};
  return kNames[static_cast<size_t>(blow)];
}

std::string CellPlan::name() const {
  return point + "/" + NameOf(blow) + (armed ? "/armed" : "/unarmed") + (vmm ? "/vmm" : "/legacy");
}

bool CellPlan::in_preparation() const {
  static const std::set<std::string> kPreparation = {"start", "slots", "import", "plan"};
  return kPreparation.contains(point);
}

PullCell::PullCell(const CellPlan& plan)
    : plan_(plan),
      node_({.region = "",
             .storage = "",
             .settings = {{"region.chunk_bytes", "\"64 KiB\""}, {"durability.flush_every", "1000000"}}}),
      points_(node_.base() + "/points"),
      variable_("FAKECUDA_POINTS=" + points_) {
  fs::create_directory(points_);
}

PullCell::~PullCell() {
  if (copier_fd_.valid()) (void)Copier(SIGKILL);
}

bool PullCell::Copier(int signal) const {
  return syscall(SYS_pidfd_send_signal, copier_fd_.get(), signal, nullptr, 0) == 0;
}

std::string PullCell::Tell() const {
  std::string said = plan_.name() + ": ";
  if (trainer_ != nullptr) {
    (void)trainer_->WaitFor("never", Millis(1));
    for (const std::string& line : trainer_->lines()) said += line + "; ";
    said += trainer_->Errors();
  }
  return said + "\n" + node_.AgentLog();
}

bool PullCell::Await(const char* line, const char* what) {
  if (trainer_->WaitFor(line)) return true;
  ADD_FAILURE() << what << ": " << Tell();
  return false;
}

void PullCell::Arm() { std::ofstream(points_ + "/" + plan_.point) << "stop"; }

void PullCell::Run() {
  if (!Begin() || !ReachPoint()) return;
  agent_before_ = UsageOf(node_.agent()->pid());
  (void)bystander_->WaitFor("never", Millis(1));
  bystanders_ = bystander_->Last("CAPTURED");
  Strike();
  if (!GoOn()) return;
  JudgeTrainer();
  JudgeBystander();
  JudgeRest();
}

bool PullCell::Begin() {
  const std::string fake = BinaryDirectory() + "/../lib/fakecuda";
  if (!node_.StartAgent({"LD_LIBRARY_PATH=" + fake, variable_, "FAKECUDA_RATE=20"})) {
    ADD_FAILURE() << Tell();
    return false;
  }
  bystander_ = node_.Train(Args("--job other --steps 1000000 --every 5 --step-ms 20 --close-ms 0"));
  if (!bystander_->WaitFor("CAPTURED")) ADD_FAILURE() << Tell();
  if (plan_.in_preparation()) Arm();
  const std::string line = std::string("--strike 20 --kind ") + (plan_.vmm ? "vmm" : "legacy") +
                           (plan_.in_preparation() ? " --prepared-ms 0" : "") +
                           (plan_.point == "release" ? " --unexport 20" : "");
  trainer_ = std::make_unique<Child>(TrainerSpec(node_, line, {}));
  return Await("READY", "it never trained so far");
}

// The copier stands at the point, and the trainer where the plan says.
bool PullCell::ReachPoint() {
  struck_ = trainer_->Last("READY");
  std::vector<pid_t> copiers;  // none before the memory is prepared, which a busy machine may take long for
  const auto begun = [&] { return !(copiers = ProcessesWith("ckptd-copier", variable_)).empty(); };
  if (!Eventually(begun) || copiers.size() != 1) {
    ADD_FAILURE() << copiers.size() << " copiers: " << Tell();
    return false;
  }
  copier_ = copiers.front();
  copier_fd_ = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, copier_, 0)));
  if (plan_.point == "idle") (void)Copier(SIGSTOP);
  if (plan_.point != "idle" && !plan_.in_preparation()) Arm();
  trainer_->Signal(SIGUSR1);
  if (!Await("SAVED", "it did not save")) return false;
  const bool behind_the_gate = plan_.point == "release";
  if (!behind_the_gate && !AwaitStopped()) return false;
  if (!plan_.armed) return true;
  trainer_->Signal(SIGUSR1);
  if (!Await("ARMED", "it did not come to the gate")) return false;
  return !behind_the_gate || AwaitStopped();
}

bool PullCell::AwaitStopped() {
  const bool stopped = Eventually(
      [&] { return StateOf(copier_) == 'T' && (plan_.point == "idle" || !fs::exists(points_ + "/" + plan_.point)); });
  if (!stopped) ADD_FAILURE() << "the copier does not come to the point: " << Tell();
  return stopped;
}

void PullCell::Strike() {
  if (!plan_.armed) trainer_->Signal(SIGUSR1);
  switch (plan_.blow) {
    case Blow::kKillCopier:
      (void)Copier(SIGKILL);
      break;
    case Blow::kStopCopier:
      std::this_thread::sleep_for(kStop);
      break;
    case Blow::kStopThenKillCopier:
      std::this_thread::sleep_for(kStop);
      (void)Copier(SIGKILL);
      break;
    case Blow::kGarbageOfCopier:
      Send(Garbage());
      break;
    case Blow::kWrongAnswersOfCopier:
      Send(WrongAnswers(AwaitedSerial()));
      break;
    case Blow::kScribbledGate:
      KeepGateShut();
      break;
    case Blow::kScribbledBell:
      Scribble({"ckptd-bell"});
      break;
    case Blow::kKillAgent:
      KillAgent();
      break;
    case Blow::kStopAgent:
      StopAgent(false);
      break;
    case Blow::kScribbledControl:
      Scribble({kControl});
      KillAgent();
      break;
    case Blow::kKillBoth:
      (void)Copier(SIGKILL);
      KillAgent();
      break;
    case Blow::kStopBoth:
      StopAgent(true);
      break;
    case Blow::kScribbledBoth:
      Scribble({kGatePage, "ckptd-bell"});
      KillAgent();
      break;
  }
  (void)Copier(SIGCONT);
}

void PullCell::StopAgent(bool copier_too) {
  node_.agent()->Signal(SIGSTOP);
  if (!copier_too) (void)Copier(SIGCONT);
  std::this_thread::sleep_for(kStop);
  node_.agent()->Signal(SIGCONT);
}

void PullCell::KillAgent() {
  node_.KillAgent();
  agent_restarted_ = true;
  const std::string fake = BinaryDirectory() + "/../lib/fakecuda";
  EXPECT_TRUE(node_.StartAgent({"LD_LIBRARY_PATH=" + fake, variable_, "FAKECUDA_RATE=20"})) << Tell();
}

// In the copier's stead: it has its end of the socket as descriptor 3.
void PullCell::Send(const std::vector<std::string>& packets) {
  const UniqueFd socket(static_cast<int>(syscall(SYS_pidfd_getfd, copier_fd_.get(), 3, 0)));
  EXPECT_TRUE(socket.valid()) << strerror(errno) << Tell();
  for (const std::string& packet : packets) {
    if (send(socket.get(), packet.data(), packet.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno == EPIPE) break;
  }
}

// Of the COPY that the copier has.
uint64_t PullCell::AwaitedSerial() const {
  const SharedMemory memory(trainer_->pid(), kGatePage);
  return memory.maps().empty() ? 0 : Newest(memory)->ready.load();
}

// Whatever opens the gate is written over, as long as the copier lives. Nothing is written behind its death: libckpt
// opens the gate for good when it is dead, so who finds it open looks at that first.
void PullCell::KeepGateShut() {
  const SharedMemory memory(trainer_->pid(), kGatePage);
  if (memory.maps().empty()) {
    ADD_FAILURE() << "no gate page: " << Tell();
    return;
  }
  GateLine* newest = Newest(memory);
  pollfd dead{copier_fd_.get(), POLLIN, 0};
  for (const auto end = std::chrono::steady_clock::now() + 3 * kStop; std::chrono::steady_clock::now() < end;) {
    const bool open = newest->released == newest->ready;
    if (poll(&dead, 1, 0) > 0) return;
    if (open) newest->released = UINT64_MAX;
  }
}

void PullCell::Scribble(const std::vector<std::string>& parts) {
  std::vector<std::unique_ptr<SharedMemory>> memories;
  std::vector<std::unique_ptr<Scribbler>> scribblers;
  for (const std::string& part : parts) {
    const pid_t writer = part == kControl ? node_.agent()->pid() : trainer_->pid();
    memories.push_back(std::make_unique<SharedMemory>(writer, part));
    EXPECT_FALSE(memories.back()->maps().empty()) << part << " " << Tell();
    scribblers.push_back(std::make_unique<Scribbler>(*memories.back(), plan_.point.size() + 11));
  }
  pollfd dead{copier_fd_.get(), POLLIN, 0};  // who is dead writes no more
  (void)poll(&dead, 1, static_cast<int>(kStop.count()));
}

// The agent serves, saves are captured again, and pulled again; then it may end. Pushed, where the bell's head was
// written over: no copier believes that bell any more.
bool PullCell::GoOn() {
  const auto again = [&] {
    (void)trainer_->WaitFor("never", Millis(10));
    const bool pulls = plan_.blow == Blow::kScribbledBell || trainer_->Last("PULLED") > pulled_;
    return pulls && trainer_->Last("CAPTURED") > struck_ + 5;
  };
  if (!plan_.armed && !Await("ARMED", "it did not come to the gate")) return false;
  trainer_->Signal(SIGUSR1);
  if (!Await("SAVES", "it has no agent again")) return false;
  pulled_ = trainer_->Last("PULLED") + 1;  // what was struck may count
  const bool went_on = Eventually(again, Millis(20'000));
  if (!went_on) ADD_FAILURE() << "saves are not pulled again: " << Tell();
  trainer_->Signal(SIGUSR1);
  return went_on;
}

void PullCell::JudgeTrainer() {
  EXPECT_EQ(trainer_->Wait(), 0) << Tell();
  std::vector<uint64_t> fds;
  size_t drops = 0;
  for (const std::string& line : trainer_->lines()) {
    if (line.rfind("FDS", 0) == 0) fds.push_back(strtoull(line.c_str() + 4, nullptr, 10));
    if (line.rfind("DROPPED", 0) == 0 && strtoull(line.c_str() + 8, nullptr, 10) >= struck_) drops += 1;
    const bool unsaid = line.ends_with(": ") || line.find(" INTERNAL: ") != line.npos;
    EXPECT_FALSE(line.rfind("DROPPED", 0) == 0 && unsaid) << "no reason is said: " << Tell();
    if (line.rfind("LONGEST", 0) == 0) longest_ = Millis(NumberField(line, "us") / 1000);
    EXPECT_TRUE(line.rfind("LEFT", 0) != 0 || line == "LEFT pins=0 streams=0 events=0") << line << Tell();
  }
  drops_ = drops;
  // Where the bell was written over, the agent knows by the next save only that nobody writes to the slot any more.
  EXPECT_LE(drops, plan_.blow == Blow::kScribbledBell ? 2u : 1u) << "more than the save that was struck: " << Tell();
  EXPECT_LE(longest_, kGate + kSlack) << "training was held up longer than the gate's deadline: " << Tell();
  EXPECT_TRUE(plan_.in_preparation() || (fds.size() == 2 && fds[0] >= fds[1])) << "descriptors: " << Tell();
  if (trainer_->lines().empty()) return;
  const std::string& digest = trainer_->lines().back();
  const std::string steps = digest.substr(0, digest.rfind(' ')).erase(0, 7);
  Child alone(TrainerSpec(node_, "--mode alone --steps " + steps, {}));
  EXPECT_EQ(alone.WaitFor("DIGEST").value_or(alone.Errors()), digest) << "not the undisturbed run: " << Tell();
  Child next(TrainerSpec(node_, "--steps 0 --path push", {}));
  EXPECT_EQ(next.WaitFor("RESTORED").value_or(next.Errors()), "RESTORED " + steps) << Tell();
}

void PullCell::JudgeBystander() {
  EXPECT_TRUE(bystander_->WaitFor("CAPTURED")) << "the other session does not go on: " << Tell();
  bystander_->Kill();
  EXPECT_EQ(bystander_->Errors(), "");
  EXPECT_GT(bystander_->Last("CAPTURED"), bystanders_) << Tell();
  auto next = node_.Train(Args("--job other --steps 1 --close-ms 0"));
  const std::string restored = Restored(*next);
  EXPECT_GE(NumberField(restored, "step"), bystander_->Last("CAPTURED")) << Tell();
  EXPECT_EQ(NumberField(restored, "source"), 1u) << "not from memory: " << Tell();
}

void PullCell::JudgeRest() {
  EXPECT_TRUE(Eventually([&] { return ProcessesWith("ckptd-copier", variable_).empty(); }, Millis(5'000)))
      << "a copier is left: " << Tell();
  EXPECT_TRUE(node_.agent()->running());
  if (!agent_restarted_) {
    const auto closed = [&] { return UsageOf(node_.agent()->pid()).fds <= agent_before_.fds; };
    EXPECT_TRUE(Eventually(closed, Millis(5'000))) << "the agent's descriptors: " << Tell();
  }
  EXPECT_EQ(node_.StopAgent(), 0) << Tell();
  ExpectNothingLeftBehind(node_, /*ranks=*/2);
}

}  // namespace ckptd::harness
