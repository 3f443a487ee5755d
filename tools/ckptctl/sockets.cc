#include "tools/ckptctl/sockets.h"

namespace ckptd {

std::string AdminBeside(const std::string& socket) {
  size_t slash = socket.rfind('/');
  return slash == std::string::npos ? "admin.sock" : socket.substr(0, slash + 1) + "admin.sock";
}

std::vector<std::string> AdminSockets(const std::string& agent_flag, const Environment& environment, unsigned uid) {
  if (!agent_flag.empty()) return {agent_flag};
  if (auto admin = environment("CKPTD_ADMIN_SOCKET"); admin && !admin->empty()) return {*admin};
  if (auto socket = environment("CKPTD_SOCKET"); socket && !socket->empty() && *socket != "auto") {
    return {AdminBeside(*socket)};
  }
  auto runtime = environment("XDG_RUNTIME_DIR");
  std::string own = runtime && !runtime->empty() ? *runtime + "/ckptd" : "/tmp/ckptd-" + std::to_string(uid);
  return {"/run/ckptd/admin.sock", own + "/admin.sock"};
}

}  // namespace ckptd
