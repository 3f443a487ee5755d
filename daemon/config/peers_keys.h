// The keys of [peers]: who the other nodes are, how they prove it, and what they hold for each other.
#ifndef CKPTD_DAEMON_CONFIG_PEERS_KEYS_H_
#define CKPTD_DAEMON_CONFIG_PEERS_KEYS_H_

#include <vector>

#include "daemon/config/keys.h"

namespace ckptd {

void AddPeersKeys(std::vector<Key>* keys);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_CONFIG_PEERS_KEYS_H_
