// SPDX-License-Identifier: Apache-2.0

package shard

// # The chain core
//
// Engines share prefixes, and a holder mostly holds a chain's beginning whole. So
// the tree of positions is stored as runs, a run is shared by all who hold any of
// it, and what a slot holds of a run is one word.
//
// # Terminology
//
//   - A run is a stretch of positions one below the other, stored as an array; a
//     position never moves to another run. Runs are never split: a chain that
//     leaves a run in its middle goes on in a child run that hangs at that offset.
//   - An offset is a number of blocks of a run; what hangs at offset n hangs below
//     its n-th block.
//   - A slot is one set of memberships: see [core].
//   - A row is an array of engine hashes for a run's leading positions. The run's
//     own row lies in the run; an alias row, for slots that name the same blocks
//     otherwise, is a piece of its own. Of each run a slot uses one row, which all
//     slots with the same hashes share.
//   - A hash is canonical for a slot at a position where the slot's row has it.
//   - An exception is an engine hash by which a slot holds a position where its row
//     has another, or none: a twin, a moved hash, a block stored before those above
//     it.
//   - Coverage is who holds what of a run; a holder entry is one slot's.
//   - A hole is a position not held with held ones below. A gap is a hole, or the
//     same thing between a run and its ancestors.
//   - A line is 64 bytes of the arena. Line numbers stand for pointers; 0 is none.
//
// # Layout
//
//	edges (own mapping)                runs (arena)
//	 (namespace, content)  ------+      header 64 B | content[cap] | eng[cap]
//	 (run, offset, content) --+  +--->  +--------------------------------------+
//	                          |         | version gen len key ext gap  e e e   |
//	                          +------>  +--------------------------------------+
//	                                              |          entries: slot, prefix,
//	                                              v ext      line of a hole bitmap
//	 dictionary (own region)            external holder block (arena)
//	  16-bit tags, row index and        | geometry counts moves | bitset | table |
//	  offset; no keys                   holders of one prefix by bit, others by entry
//
//	 run table (Go heap): index -> line, root, children, last child's offset,
//	                      hashes in its row, first alias row; for an alias row:
//	                      line (arena), run, hashes in it, users, next row
//	 tails (Go heap): where the last stores ended, by engine hash
//	 slots (Go heap): counts, a guess, set of runs, alias rows by run, exceptions
//
// One block costs 16 bytes in its run and 14 in the dictionary at the load at
// which that grows, for all who hold it by one hash, and 8 and 14 for all who hold
// it by a further one; a holder costs a word or a bit a run. Edges cost 16 bytes a
// run.
//
// # Operations
//
// Store walks down from the position given, comparing contents run by run, with
// one edge probe at each end; appends what is left to the last run while there is
// room, and makes runs for the rest. Where the last run
// is full and grew by a few blocks itself, the next has twice its room, so that a
// decoded chain of n blocks is O(log n) runs. The slot names the blocks by its row
// of each run, which is filled further at its end; where it holds nothing of the
// run yet, by the row that agrees, which one look into the dictionary finds, or by a
// new one ([chainCore.plan]). Blocks that were there and whose hash agrees need no
// dictionary access: that is exact because a run is flagged as soon as a hash of
// one of its rows is entered for another position, too. In flagged runs, for other
// hashes, for hashes that are exceptions and in runs where the slot has some the
// store goes block by block in overlays, and publishes the net effect
// ([chainCore.publish]).
//
// Remove finds its first hash by a guess or in the dictionary, compares the others
// with those around it in the slot's row, and takes a whole range away at once.
// What nobody holds any more at a run's end is cut off, in all its rows; an alias
// row goes with the last slot that used it, an empty run is freed, and perhaps its
// parents ([chainCore.settle]).
//
// Find asks the slot's exceptions, the tails, and the dictionary. The slot's
// position is that of the candidate in a row it uses whose position it covers: by
// canonical hash a slot holds at most one position of each hash.
//
// Lookup goes down by contents: one edge probe and one [asm.ReadRun] a run, then
// coverage of the slots still alive; where those are known by bit, [asm.ReadRunAnd]
// takes in who holds the run by bit, too. The dictionary is not touched. Most
// holders of a popular prefix hold just that prefix of its run, whatever the run
// goes on with, so that they are one bitset, copied at once; they are listed while
// the next run's lines are on their way, and the few that hold more are found again
// by their rank in the bitset. A child run's few holders are looked for among those
// alive, not the other way round. A batch of lookups goes down in step, and each
// stage asks for the lines that the next one reads ([batchScratch.step]).
//
// # Ordering
//
// One writer, any number of readers. Readers load word by word; the writer stores
// words in the order below, plainly where the machine keeps the order of stores.
//
//	change                   words                         published by
//	------------------------ ----------------------------- ----------------------------
//	new run                  header, content, entry        edge slot, one store
//	append                   content beyond len            len, one store
//	coverage, inline         -                             entry, one store
//	coverage, by entry       -                             entry, one store
//	entry -> bit             bit, then entry               bit
//	bit -> entry             entry, then bit               bit
//	holder block replaced    block; version odd            ext; version even
//	shortened                version odd; gen+1, len       version even
//	first child, last child  parent flag                   before the edge, after it
//	freed                    edge slot; version odd; gen+1 version even
//	edge added               overflow counts               slot, one store
//	edge removed             slot, then overflow counts    slot
//	edges moved on growth    copies at their new homes     desc, one store; then the
//	                                                       originals go, as removed
//	gain below a gap         gap clock, gap stamp          entry or bit, afterwards
//	move of a hash           all losses, in all runs       each its own entry
//	                         then all gains, top down      each its own entry
//
// A reader of a run loads the version, the header with the entries before the gap
// stamp, compares contents, copies coverage, and loads the version again. When it
// changed, all of that is done again; after [spins] times the reader lets others
// run, the goroutines of its own thread and, after some times, other threads, and
// starts at the root. It never gives up with a part. Nothing it copied counts before
// the version is confirmed. Coverage changes without the version, but when a
// block is replaced: it grows by half or more each time, up to an entry for each
// holder, and shrinks only once it is four times too large. So readers of a run
// whose holders come and go read it at once: of 20,000 lookups of a run with 1,000
// holders, 20 had to read again under a writer that did nothing else.
//
// # Why an answer is inside its bounds
//
// Not below: a position that a slot holds throughout the call is in the same run
// and edge throughout, and its entry or bit is found, so it counts.
//
// Not above: let P1 .. Pk be what the reader saw a slot hold of the runs passed,
// at times t1 < .. < tk. Then all were held together at some moment of the call.
// By induction, let m be such a moment for P1 .. Pj, and g the last moment at or
// before t(j+1) at which the slot gained what completes P(j+1). If g <= m, all are
// held at m. Else the slot held everything above at g, so all are held at g:
// for a gain while something above lacks puts a stamp into the run, newer than
// what the gap clock said when the call began, and the reader, who loads the stamp
// after the coverage, starts again. And what is above P(j+1) at g is what the
// reader matched: a run's blocks below its length stay as they are while its
// generation does, which the reader compares once it has read the child.
//
// A store that moves hashes takes all losses before all gains. So the state in
// between has, for each chain, a depth between the one before and the one after:
// where a loss lies above the first hole, the loss bounds the depth after, too;
// else the first hole bounds the depth before.
//
// # Reclamation
//
// Nothing is ever unmapped while the core lives. The dictionary is the writer's
// alone and moves what it likes. A piece of the arena is used again only as what it was: a run's
// header stays a header of the same class, a holder block one of the same class.
// So a reader with an old line number reads a version, a generation and a geometry
// that fit the memory behind them, and then finds that the version has changed.
//
// A page of pieces of which none is in use may lose its memory: then it reads as
// zeros, until it is used again, in the same class. To a late reader zeros are no
// run and no holders:
//
//   - Version and generation of a live run are never 0, and when memory comes back
//     they begin past all that was ever in that page. So what a reader compares
//     with, being of a live run, is neither in the zeros nor in what comes after.
//   - A header of zeros has no blocks, so that nothing matches; where a version was
//     read before and zeros after, it has changed.
//   - A holder block of zeros has no bitset and no table; the run's version, which is
//     compared after it was read, is another by now.
//   - Bitmaps and rows of hashes are the writer's alone.
//
// The edge table grows in place, in address space reserved for the most runs: its
// lines stay its lines, and no table is ever replaced. A reader keeps the home line
// that desc gave it; where it finds nothing and the home is another by now, it looks
// there. Homes never move down, so that the same home before and after means that
// the entry did not move meanwhile.
//
// # Limits
//
//   - 65,535 slots.
//   - The edge table and the run table keep their size when runs go.
//   - 512 blocks a run, so that an offset has 9 bits and a hole bitmap one line;
//     8,388,607 runs and alias rows, so that a position has 32.
//   - Options.ArenaBytes, 64 GiB by default, in 32-bit line numbers. Past it stores
//     are refused whole ([ErrArenaFull]); so they are past eight times as many line
//     numbers, or all 32 bits (256 GiB), which classes keep for ever. Removals, which may need a bitmap or a
//     wider table, are not: a quarter of the bound and 64 MiB lie beyond it.
//   - The dictionary never shrinks. While it grows, stores pay for it: up to 0.3 us
//     a block.
//
// # Not supported
//
//   - Two rows of one run for one slot: an engine that names some blocks of a run
//     anew while it holds others pays about 100 bytes of Go heap for each.
//   - Moving runs: a page with one run left in it keeps its memory. Pieces come from
//     the lowest page that has one, so that the higher ones run empty.
//   - A tail that nobody holds any more, in a run with a table of more than 64
//     holders or above a child's offset, stays until those are gone.
