// syscall-node FOLDER LIFE MUTANT SHORT: lives one life (lives.h) over FOLDER/store in one thread by plain system
// calls, and writes what it tells to FOLDER/acks. SHORT: the number of the transfer that moves half of its bytes; 0 =
// none.
//
// Made to be traced: what belongs to the life lies between two access() calls.
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string>

#include "daemon/base/log.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/testing/files_around.h"
#include "tests/syscalls/ack_file.h"
#include "tests/syscalls/lives.h"
#include "tests/syscalls/mutants.h"
#include "tests/syscalls/short_transfer.h"
#include "tests/syscalls/strace.h"

namespace ckptd::syscalls {
namespace {

namespace fs = std::filesystem;

int OpenFds() {
  return static_cast<int>(std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator()));
}

End Live(const Life& life, const Mutant& mutant, const std::string& folder, AckFile& acks) {
  const std::unique_ptr<Files> storage = MakeFilesBelow(folder + crash::kRoot);
  FilesAround below(*storage, folder);
  const std::unique_ptr<Files> broken = mutant.files ? mutant.files(below) : nullptr;
  crash::NodeOptions options = life.options;
  options.around = mutant.around;
  if (mutant.rules) mutant.rules(options.rules);
  crash::Memory memory;
  crash::Node node(broken ? *broken : below, memory, options, &acks);
  life.script(node);
  return {.durable = node.durable(), .wrong = node.wrong()};
}

int Main(char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  SetLogLevel(static_cast<LogLevel>(0));
  const std::string folder = argv[1];
  const Life* life = FindLife(argv[2]);
  const Mutant* mutant = FindMutant(argv[3]);
  if (life == nullptr || mutant == nullptr) return std::fprintf(stderr, "syscall-node: no such life or mutant\n"), 2;
  AckFile acks(folder + "/acks");
  const int fds = OpenFds();
  (void)access(kBegins, F_OK);
  ShortenTransfer(strtoull(argv[4], nullptr, 10));
  End end = Live(*life, *mutant, folder, acks);
  (void)access(kEnds, F_OK);
  end.fds = OpenFds() - fds;
  acks.Tell(end);
  return 0;
}

}  // namespace
}  // namespace ckptd::syscalls

int main(int argc, char** argv) { return argc == 5 ? ckptd::syscalls::Main(argv) : 2; }
