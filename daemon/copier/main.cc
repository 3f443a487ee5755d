// ckptd-copier: copies a trainer's GPU memory into its slots, in a process of its own. Started by the agent, as the
// trainer's user, with one end of a socket pair whose other end the trainer has.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "daemon/copier/outcome.h"
#include "daemon/copier/service.h"

namespace ckptd {
namespace {

constexpr char kHelp[] =
    "ckptd-copier --socket FD --region TOKEN\n\n"
    "Copies GPU memory for one training process. ckptd starts it where captures are pulled; it is of no use by "
    "itself.\n"
    "TOKEN is what a later agent knows it by. Ends with the training process: 0; 2 wrong arguments; 3 a broken GPU\n"
    "context; 4 a broken socket.\n";

int Usage(const char* what) {
  fprintf(stderr, "ckptd-copier: %s\n%s", what, kHelp);
  return kExitUsage;
}

bool ParseNumber(std::string_view text, int* out) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size() && *out >= 0;
}

bool IsPacketSocket(int fd) {
  int type = 0;
  socklen_t size = sizeof type;
  return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET;
}

int Main(int argc, char** argv) {
  int socket = -1;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view flag = argv[i];
    if (flag == "--help" || flag == "-h") return fputs(kHelp, stdout) >= 0 && fflush(stdout) == 0 ? 0 : kExitUsage;
    if (flag != "--socket" && flag != "--region") return Usage("an argument that it does not know");
    if (i + 1 >= argc) return Usage("an argument without its value");
    if (flag == "--socket" && !ParseNumber(argv[i + 1], &socket)) return Usage("--socket takes a descriptor");
  }
  if (!IsPacketSocket(socket)) return Usage("--socket is not a socket of packets");
  fcntl(socket, F_SETFD, FD_CLOEXEC);
  signal(SIGPIPE, SIG_IGN);
  Service service(socket);
  int code = service.Run();
  // Not by the way of destructors: they would ask a context that may be broken, and the process's end gives back more.
  _exit(code);
}

}  // namespace
}  // namespace ckptd

int main(int argc, char** argv) { return ckptd::Main(argc, argv); }
