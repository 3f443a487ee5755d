#include "tests/integration/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

namespace ckptd::harness {
namespace {

constexpr int kPipeBytes = 1 << 20;  // so that a trainer nobody reads does not wait for the test

int MillisLeft(TimePoint deadline) {
  auto left = std::chrono::duration_cast<Millis>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::max<int64_t>(0, left + 1));
}

bool Readable(int fd, TimePoint deadline) {
  pollfd entry{fd, POLLIN, 0};
  return poll(&entry, 1, MillisLeft(deadline)) > 0;
}

// Between fork and exec: only what is async-signal-safe. The child dies with the test.
[[noreturn]] void Become(const std::vector<char*>& argv, char** environment, int out, int error) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  dup2(out, STDOUT_FILENO);
  dup2(error, STDERR_FILENO);
  execvpe(argv[0], argv.data(), environment);
  _exit(127);
}

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> out;
  out.reserve(texts.size() + 1);
  for (const std::string& text : texts) out.push_back(const_cast<char*>(text.c_str()));
  out.push_back(nullptr);
  return out;
}

size_t Entries(const std::string& directory) {
  std::error_code ignored;
  auto list = std::filesystem::directory_iterator(directory, ignored);
  return static_cast<size_t>(std::distance(begin(list), end(list)));
}

// Readable for everybody; made once, removed at the end.
const std::string& PublicLibraries() {
  namespace fs = std::filesystem;
  struct Folder {
    std::string path = fs::temp_directory_path() / "ckptd-lib-XXXXXX";
    Folder() {
      if (mkdtemp(path.data()) == nullptr) std::abort();
      fs::permissions(path, fs::perms(0755));
      fs::copy_file(BinaryDirectory() + "/../lib/libckpt.so.1", path + "/libckpt.so.1");
    }
    ~Folder() { fs::remove_all(path); }
  };
  static const Folder folder;
  return folder.path;
}

}  // namespace

std::vector<std::string> AsUser(const std::string& uid, const std::string& gid, const std::string& groups) {
  std::vector<std::string> prefix = {
      "env", "LD_LIBRARY_PATH=" + PublicLibraries(), "setpriv", "--reuid", uid, "--regid", gid};
  if (groups.empty()) prefix.emplace_back("--clear-groups");
  if (!groups.empty()) prefix.insert(prefix.end(), {"--groups", groups});
  return prefix;
}

// Once: a process that left its mount namespace from within a chroot is told another path.
std::string BinaryDirectory() {
  static const std::string directory = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  return directory;
}

Child::Child(Spec spec) : spec_(std::move(spec)) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
  fcntl(ends[1], F_SETPIPE_SZ, kPipeBytes);
  int error = open(spec_.error_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  std::vector<std::string> environment = spec_.environment;  // first: of two equal names the first counts
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  std::vector<char*> argv = Pointers(spec_.argv);
  std::vector<char*> envp = Pointers(environment);
  pid_ = fork();
  if (pid_ == 0) Become(argv, envp.data(), ends[1], error);
  pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  out_ = ends[0];
  close(ends[1]);
  close(error);
}

Child::~Child() {
  if (running()) Kill();
  close(out_);
  close(pidfd_);
}

bool Child::Fill(TimePoint deadline) {
  if (!Readable(out_, deadline)) return false;
  char buffer[4096];
  ssize_t got = read(out_, buffer, sizeof buffer);
  if (got <= 0) return false;
  partial_.append(buffer, static_cast<size_t>(got));
  size_t begin = 0;
  for (size_t end = partial_.find('\n'); end != partial_.npos; end = partial_.find('\n', begin)) {
    lines_.push_back(partial_.substr(begin, end - begin));
    begin = end + 1;
  }
  partial_.erase(0, begin);
  return true;
}

std::optional<std::string> Child::NextLine(Millis timeout) {
  TimePoint deadline = std::chrono::steady_clock::now() + timeout;
  while (taken_ == lines_.size()) {
    if (!Fill(deadline)) return std::nullopt;
  }
  return lines_[taken_++];
}

std::optional<std::string> Child::WaitFor(const std::string& prefix, Millis timeout) {
  TimePoint deadline = std::chrono::steady_clock::now() + timeout;
  while (auto line = NextLine(Millis(MillisLeft(deadline)))) {
    if (line->rfind(prefix, 0) == 0) return line;
  }
  return std::nullopt;
}

void Child::Signal(int signal) const { syscall(SYS_pidfd_send_signal, pidfd_, signal, nullptr, 0); }

bool Child::Reap(TimePoint deadline) {
  if (!Readable(pidfd_, deadline)) return false;
  int status = 0;
  waitpid(pid_, &status, 0);
  status_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return true;
}

int Child::Wait(Millis timeout) {
  TimePoint deadline = std::chrono::steady_clock::now() + timeout;
  while (Fill(deadline)) {
  }
  if (running() && !Reap(deadline)) return kHangs;
  return *status_;
}

int Child::Kill() {
  Signal(SIGKILL);
  return Wait();
}

uint64_t Child::Last(const std::string& word) const {
  for (auto line = lines_.rbegin(); line != lines_.rend(); ++line) {
    if (line->rfind(word + " ", 0) == 0) return strtoull(line->c_str() + word.size() + 1, nullptr, 10);
  }
  return 0;
}

uint64_t LastOf(const Ranks& ranks, const std::string& word) {
  uint64_t last = 0;
  for (const auto& rank : ranks) last = std::max(last, rank->Last(word));
  return last;
}

void KillAll(Ranks& ranks) {
  for (auto& rank : ranks) rank->Kill();
}

std::string Child::Errors() const { return FileContent(spec_.error_file); }

std::string FileContent(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

Usage UsageOf(pid_t pid) {
  Usage usage;
  std::string proc = "/proc/" + std::to_string(pid);
  usage.fds = Entries(proc + "/fd");
  usage.threads = Entries(proc + "/task");
  std::ifstream status(proc + "/status");
  for (std::string line; std::getline(status, line);) {
    uint64_t kib = strtoull(line.c_str() + std::min(line.size(), line.find_first_of("0123456789")), nullptr, 10);
    if (line.rfind("RssAnon:", 0) == 0) usage.anonymous_kib = kib;
    if (line.rfind("RssAnon:", 0) == 0 || line.rfind("RssFile:", 0) == 0) usage.resident_kib += kib;
  }
  const std::string all = FileContent(proc + "/stat");
  std::istringstream fields(all.substr(std::min(all.size(), all.rfind(')') + 1)));
  std::vector<std::string> words{std::istream_iterator<std::string>(fields), {}};  // words[0] is field 3
  if (words.size() < 13) return usage;
  usage.minor_faults = strtoull(words[7].c_str(), nullptr, 10);
  usage.cpu_ticks = strtoull(words[11].c_str(), nullptr, 10) + strtoull(words[12].c_str(), nullptr, 10);
  return usage;
}

std::vector<std::string> DescriptorsOf(pid_t pid, const std::string& but) {
  namespace fs = std::filesystem;
  std::vector<std::string> found;
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd", gone)) {
    const std::string target = fs::read_symlink(entry.path(), gone).string();
    if (!target.empty() && !target.starts_with(but) && target != "anon_inode:[io_uring]") found.push_back(target);
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string Field(const std::string& line, const std::string& name) {
  size_t at = line.find(" " + name + "=");
  if (at == line.npos) return "";
  at += name.size() + 2;
  return line.substr(at, line.find(' ', at) - at);
}

uint64_t NumberField(const std::string& line, const std::string& name) {
  return strtoull(Field(line, name).c_str(), nullptr, 10);
}

}  // namespace ckptd::harness
