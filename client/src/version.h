#ifndef CKPTD_CLIENT_SRC_VERSION_H_
#define CKPTD_CLIENT_SRC_VERSION_H_

namespace ckptd {

inline constexpr char kLibraryVersion[] = "0.1.0";

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_VERSION_H_
