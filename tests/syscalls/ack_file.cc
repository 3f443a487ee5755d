#include "tests/syscalls/ack_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/format/paths.h"
#include "daemon/os/testing/sim_log.h"
#include "tests/crash/crash_content.h"

namespace ckptd::syscalls {
namespace {

constexpr size_t kMost = 256 << 10;
constexpr char kEnd[] = "end";

std::string LineOf(const crash::Fact& fact) {
  return absl::StrCat(static_cast<int>(fact.kind), " ", fact.id.attempt, " ", fact.id.step, " ", fact.attempt, " ",
                      fact.hash, " ", fact.name, "\n");
}

crash::Fact FactIn(const std::string& line) {
  std::istringstream words(line);
  int kind = 0;
  crash::Fact fact;
  words >> kind >> fact.id.attempt >> fact.id.step >> fact.attempt >> fact.hash >> fact.name;
  fact.kind = static_cast<crash::Fact::Kind>(kind);
  return fact;
}

End EndIn(const std::string& line) {
  std::istringstream words(line.substr(sizeof kEnd));
  End end;
  words >> end.durable.attempt >> end.durable.step >> end.fds;
  std::getline(words >> std::ws, end.wrong);
  return end;
}

}  // namespace

AckFile::AckFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0 || ftruncate(fd, kMost) != 0) std::abort();
  void* mapped = mmap(nullptr, kMost, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (mapped == MAP_FAILED) std::abort();
  close(fd);
  text_ = static_cast<char*>(mapped);
}

AckFile::~AckFile() { munmap(text_, kMost); }

void AckFile::Append(const std::string& line) {
  if (size_ + line.size() >= kMost) std::abort();
  std::memcpy(text_ + size_, line.data(), line.size());
  size_ += line.size();
}

void AckFile::Hear(const crash::Fact& fact) { Append(LineOf(fact)); }

// The file is not read: that would be system calls. An image has the bytes that belong under its name.
uint64_t AckFile::HashOf(const std::string& name, absl::string_view bytes) {
  if (!bytes.empty()) return sim::HashBytes(bytes);
  const size_t slash = name.rfind('/');
  const auto file = ParseRankFileName(name.substr(slash + 1));
  if (!file || file->sidecar) return 0;
  const std::string step = name.substr(0, slash);
  const auto id = ParseStepDirectoryName(step.substr(step.rfind('/') + 1));
  return id ? crash::HashOfImage(*id, file->rank, file->world, file->image) : 0;
}

void AckFile::Tell(const End& end) {
  Append(absl::StrCat(kEnd, " ", end.durable.attempt, " ", end.durable.step, " ", end.fds, " ", end.wrong, "\n"));
}

Told ReadAcks(const std::string& path, crash::Promise before) {
  Told told{std::move(before), std::nullopt};
  std::ifstream file(path);
  for (std::string line; std::getline(file, line) && line[0] != '\0';) {
    if (line.starts_with(kEnd)) {
      told.end = EndIn(line);
    } else {
      Apply(FactIn(line), told.promise);
    }
  }
  return told;
}

}  // namespace ckptd::syscalls
