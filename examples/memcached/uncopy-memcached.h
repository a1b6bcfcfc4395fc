/* Memory for memcached's slab pages, in which its items lie with their values, from the twin allocator.
   To be included (-include) in front of slabs.c, and nowhere else. */
#include <stdlib.h>
#include <uncopy.h>

static inline void free_either(void *memory) { uncopy_owns(memory) ? uncopy_free(memory) : free(memory); }
#define malloc uncopy_alloc
#define free free_either
