#include "doorbells.h"

#include <poll.h>
#include <unistd.h>

#include <ctime>

#include "host_memory.h"
#include "host_pipes.h"

namespace parallax {
namespace {

void Wake(int pipe) {
  const char wakes = 1;
  // If the pipe is full, its rank wakes anyway.
  if (write(pipe, &wakes, 1) < 0) return;
}

void Empty(int pipe) {
  char bytes[64];
  while (read(pipe, bytes, sizeof(bytes)) == sizeof(bytes)) {
  }
}

}  // namespace

bool Doorbells::Connect(MPI_Comm comm, MPI_Comm on_host) {
  int rank = 0, size = 0, host_rank = 0, host_size = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  MPI_Comm_rank(on_host, &host_rank);
  MPI_Comm_size(on_host, &host_size);
  bells_.assign(size, nullptr);
  pipes_.assign(size, -1);
  const HostPipes pipes = ConnectPipes(on_host);
  own_pipe_to_read_ = pipes.to_read;
  own_pipe_to_write_ = pipes.to_write[host_rank];
  is_one_host_ = host_size == size;
  host_rings_ = host_size == 1;
  if (host_size == 1 || !pipes.are_all_open) return own_pipe_to_read_ >= 0;
  std::vector<int> ranks(host_size);
  MPI_Allgather(&rank, 1, MPI_INT, ranks.data(), 1, MPI_INT, on_host);
  Bell* shared = static_cast<Bell*>(ShareMemory(on_host, host_size * sizeof(Bell)));
  if (shared == nullptr) return true;
  for (int i = 0; i < host_size; ++i) {
    bells_[ranks[i]] = shared + i;
    pipes_[ranks[i]] = pipes.to_write[i];
  }
  own_ = bells_[rank];
  host_rings_ = true;
  return true;
}

void Doorbells::Ring(int rank) {
  Bell* bell = bells_[rank];
  if (bell == nullptr) return;
  bell->rings.fetch_add(1);
  // Only the first ring of a sleep wakes the sleeper.
  Listens listens = bell->listens.load();
  const bool is_heard = listens == Listens::kToHost || listens == Listens::kToAllRanks;
  if (is_heard && bell->listens.compare_exchange_strong(listens, Listens::kToNobody)) Wake(pipes_[rank]);
}

void Doorbells::RingThoseDue() {
  for (const int rank : due_) Ring(rank);
  due_.clear();
}

void Doorbells::RingOwn() {
  own_->rings.fetch_add(1);
  if (own_->listens.exchange(Listens::kToNobody) != Listens::kToNobody) Wake(own_pipe_to_write_);
}

bool Doorbells::SleepUnlessRung(uint32_t rings, std::chrono::microseconds longest, Listens listens) {
  timespec timeout;
  timeout.tv_sec = longest.count() / 1000000;
  timeout.tv_nsec = longest.count() % 1000000 * 1000;
  pollfd awaited[] = {{own_pipe_to_read_, POLLIN, 0}, {sockets_.file(), POLLIN, 0}};
  const bool hears_sockets = listens == Listens::kToAllRanks && !is_one_host_;
  // Who rings adds a ring and then reads whether somebody listens. This is the other way round, so no ring is missed.
  own_->listens.store(listens);
  if (own_->rings.load() == rings) ppoll(awaited, hears_sockets ? 2 : 1, &timeout, nullptr);
  own_->listens.store(Listens::kToNobody);
  if (awaited[0].revents != 0) Empty(own_pipe_to_read_);
  const bool is_by_bell = own_->rings.load() != rings;
  const bool is_by_socket = awaited[1].revents != 0;
  if (hears_sockets) is_told_by_socket_ = is_by_bell ? std::nullopt : std::optional(is_by_socket);
  return is_by_bell || is_by_socket;
}

void Doorbells::ForgetSockets() {
  if (!is_one_host_) sockets_.Forget();
}

void Doorbells::Came() {
  if (is_told_by_socket_) sockets_.Came(*is_told_by_socket_);
  is_told_by_socket_.reset();
}

}  // namespace parallax
