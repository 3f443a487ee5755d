// Where the agent's admin socket is. Pure.
#ifndef CKPTD_TOOLS_CKPTCTL_SOCKETS_H_
#define CKPTD_TOOLS_CKPTCTL_SOCKETS_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace ckptd {

using Environment = std::function<std::optional<std::string>(const std::string& name)>;

// To be tried in this order: what was said (--agent, $CKPTD_ADMIN_SOCKET, beside $CKPTD_SOCKET) alone; else the
// system's agent, then the user's own.
[[nodiscard]] std::vector<std::string> AdminSockets(const std::string& agent_flag, const Environment& environment,
                                                    unsigned uid);

// admin.sock in the directory of `socket`.
[[nodiscard]] std::string AdminBeside(const std::string& socket);

}  // namespace ckptd

#endif  // CKPTD_TOOLS_CKPTCTL_SOCKETS_H_
