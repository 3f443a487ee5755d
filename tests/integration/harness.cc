#include "tests/integration/harness.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

namespace ckptd::harness {
namespace {

namespace fs = std::filesystem;

std::string MakeTemp(const std::string& parent) {
  std::string path = parent + "/ckptd-it-XXXXXX";
  if (mkdtemp(path.data()) == nullptr) ADD_FAILURE() << "cannot make " << path;
  return path;
}

// The datagram socket that the agent reports READY=1 to.
int BindNotify(const std::string& path) {
  unlink(path.c_str());
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) ADD_FAILURE() << "cannot bind " << path;
  return fd;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

bool Names(const std::vector<std::string>& arguments, const std::string& flag) {
  return std::find(arguments.begin(), arguments.end(), flag) != arguments.end();
}

// What a sanitizer said of an agent or a trainer fails the test, also when nobody looked how that process ended.
void ExpectNoSanitizerReport(const std::string& logs) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(logs, error)) {
    if (entry.path().extension() != ".log") continue;
    std::string text = ReadFile(entry.path());
    EXPECT_EQ(text.find("Sanitizer: "), text.npos) << entry.path() << ": " << text;
  }
}

}  // namespace

Node::Node(const NodeOptions& options)
    : base_(MakeTemp("/tmp")), agent_prefix_(options.agent_prefix), tiny_(options.tiny_trainer) {
  region_ = options.region.empty() ? MakeTemp("/dev/shm") : options.region;
  storage_ = options.storage.empty() ? base_ + "/storage" : options.storage;
  chmod(base_.c_str(), 0755);  // for trainers of another user
  WriteConfig(options);
}

Node::~Node() {
  agent_.reset();
  ExpectNoSanitizerReport(base_);
  bool keep = testing::Test::HasFailure() && getenv("CKPTD_KEEP") != nullptr;
  std::error_code ignored;
  fs::remove_all(region_, ignored);
  if (!keep) fs::remove_all(base_, ignored);
}

void Node::WriteConfig(const NodeOptions& options) const {
  std::map<std::string, std::string> settings = {
      {"agent.socket", "\"" + socket() + "\""},       {"agent.admin_socket", "\"off\""},
      {"agent.state_dir", "\"" + base_ + "/state\""}, {"region.dir", "\"" + region_ + "/r\""},
      {"storage.root", "\"" + storage_ + "\""},       {"metrics.listen", "\"off\""}};
  if (const char* io = std::getenv("CKPTD_TEST_IO")) settings["storage.io"] = std::string("\"") + io + "\"";
  for (const auto& [key, value] : options.settings) settings[key] = value;
  std::map<std::string, std::string> sections;
  for (const auto& [key, value] : settings) {
    size_t dot = key.find('.');
    sections[key.substr(0, dot)] += key.substr(dot + 1) + " = " + value + "\n";
  }
  std::ofstream file(base_ + "/ckptd.toml");
  for (const auto& [section, text] : sections) file << "[" << section << "]\n" << text;
}

bool Node::StartAgent(std::vector<std::string> environment) {
  auto begin = std::chrono::steady_clock::now();
  int notify = BindNotify(base_ + "/notify");
  environment.push_back("NOTIFY_SOCKET=" + base_ + "/notify");
  std::vector<std::string> argv = agent_prefix_;
  argv.insert(argv.end(), {BinaryDirectory() + "/ckptd", "--config", base_ + "/ckptd.toml"});
  agent_ = std::make_unique<Child>(Child::Spec{std::move(argv), std::move(environment), base_ + "/agent.log"});
  bool ready = AwaitReady(notify, kLong);
  close(notify);
  start_time_ = std::chrono::duration_cast<Millis>(std::chrono::steady_clock::now() - begin);
  return ready;
}

bool Node::AwaitReady(int notify, Millis timeout) const {
  TimePoint deadline = std::chrono::steady_clock::now() + timeout;
  while (std::chrono::steady_clock::now() < deadline) {
    pollfd fds[] = {{notify, POLLIN, 0}, {agent_->pidfd(), POLLIN, 0}};
    if (poll(fds, 2, static_cast<int>(timeout.count())) <= 0 || fds[0].revents == 0) return false;
    char text[512] = {};
    if (recv(notify, text, sizeof text - 1, 0) > 0 && std::string(text).find("READY=1") != std::string::npos)
      return true;
  }
  return false;
}

void Node::KillAgent() {
  EXPECT_EQ(agent_->Kill(), -SIGKILL) << "the agent had ended before it was killed: " << AgentLog();
}

int Node::StopAgent(Millis timeout) {
  agent_->Signal(SIGTERM);
  return agent_->Wait(timeout);
}

std::string Node::AgentLog() const { return ReadFile(base_ + "/agent.log"); }

std::vector<std::string> Node::Defaults(const std::vector<std::string>& arguments) const {
  std::vector<std::string> out;
  auto offer = [&](const char* flag, const char* value) {
    if (!Names(arguments, flag)) out.insert(out.end(), {flag, value});
  };
  if (tiny_) offer("--tensors", "4");
  if (tiny_) offer("--bytes", "65536");
  out.insert(out.end(), arguments.begin(), arguments.end());
  return out;
}

std::unique_ptr<Child> Node::Train(const std::vector<std::string>& arguments, std::vector<std::string> prefix) {
  std::vector<std::string> argv = std::move(prefix);
  argv.insert(argv.end(), {BinaryDirectory() + "/ckpt-trainer", "--socket", socket()});
  std::vector<std::string> all = Defaults(arguments);
  argv.insert(argv.end(), all.begin(), all.end());
  return std::make_unique<Child>(
      Child::Spec{std::move(argv), {}, base_ + "/trainer-" + std::to_string(trainers_++) + ".log"});
}

std::string Node::ExpectedDigest(const std::vector<std::string>& arguments) {
  std::vector<std::string> all = Defaults(arguments);
  std::string key;
  for (const std::string& argument : all) key += argument + " ";
  std::string& digest = digests_[key];
  if (!digest.empty()) return digest;
  std::vector<std::string> argv = {BinaryDirectory() + "/ckpt-trainer", "--socket", base_ + "/nobody"};
  argv.insert(argv.end(), all.begin(), all.end());
  argv.emplace_back("--digest");
  Child undisturbed(Child::Spec{std::move(argv), {}, base_ + "/undisturbed.log"});
  digest = undisturbed.WaitFor("DIGEST").value_or("no digest: " + undisturbed.Errors());
  return digest;
}

void Node::LoseRegion() const {
  for (const auto& entry : fs::directory_iterator(region_)) fs::remove_all(entry.path());
}

std::vector<std::string> ListFiles(const std::string& directory) {
  std::vector<std::string> files;
  std::error_code error;
  fs::recursive_directory_iterator entry(directory, error);
  for (; !error && entry != fs::end(entry); entry.increment(error)) {  // what it looks at may go meanwhile
    std::error_code gone;
    if (entry->is_regular_file(gone)) files.push_back(entry->path().lexically_relative(directory));
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> FilesWith(const std::string& directory, const std::string& part) {
  std::vector<std::string> files = ListFiles(directory);
  std::erase_if(files, [&](const std::string& name) { return name.find(part) == name.npos; });
  return files;
}

std::vector<std::pair<uint64_t, std::string>> WholeSteps(const Node& node, const std::string& job) {
  std::vector<std::pair<uint64_t, std::string>> steps;
  std::string root = node.storage() + "/" + job;
  for (const std::string& name : FilesWith(root, "/rank-00000-of-00001.json")) {
    std::string folder = name.substr(0, name.find('/'));
    const uint64_t step = strtoull(folder.c_str() + 5, nullptr, 10);
    steps.emplace_back(step, folder.insert(0, root + "/"));
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

void FlipByte(const std::string& file, uint64_t offset) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(offset));
  char byte = static_cast<char>(stream.get() ^ 0x40);
  stream.seekp(static_cast<std::streamoff>(offset));
  stream.put(byte);
  ASSERT_TRUE(stream.good()) << file;
}

void FillWithGarbage(const std::string& file, uint64_t seed) {
  std::vector<char> bytes(fs::file_size(file));
  for (char& byte : bytes) {
    seed = seed * 6364136223846793005 + 1442695040888963407;
    byte = static_cast<char>(seed >> 56);
  }
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(stream.good()) << file;
}

std::vector<std::string> Args(const std::string& line) {
  std::istringstream words(line);
  return {std::istream_iterator<std::string>(words), {}};
}

void ExpectNothingLeftBehind(const Node& node, size_t ranks, size_t slots) {
  EXPECT_EQ(FilesWith(node.storage(), ".tmp-"), std::vector<std::string>());
  EXPECT_EQ(FilesWith(node.region(), "tmp"), std::vector<std::string>());
  EXPECT_EQ(FilesWith(node.region(), "/ctl.").size(), ranks) << testing::PrintToString(ListFiles(node.region()));
  EXPECT_EQ(FilesWith(node.region(), "/slot-").size(), ranks * slots)
      << testing::PrintToString(ListFiles(node.region()));
}

std::string ThreadsMayBeLeft() {
  const char* given = getenv("TSAN_OPTIONS");
  return (given != nullptr ? given : "") + std::string(" report_thread_leaks=0");
}

std::string Restored(Child& trainer, Millis timeout) {
  for (const std::string& line : trainer.lines()) {
    if (line.rfind("RESTORED", 0) == 0) return line;  // somebody has read it already
  }
  auto line = trainer.WaitFor("RESTORED", timeout);
  if (!line) ADD_FAILURE() << "not restored: " << trainer.Errors();
  return line.value_or("");
}

}  // namespace ckptd::harness
